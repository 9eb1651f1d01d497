"""The check of settings refuses what processes refuse, and says which of them do."""

import re
from typing import Any

import pytest
from pydantic_core import core_schema

from infra.check import complaints, main
from infra.process import EXIT_MISCONFIGURED
from schema.kinds import JobInput, Kind

EVERY = ("api", "dispatcher", "consumer")
COMPLETE = {
    "DATABASE_URL": "postgresql://127.0.0.1/haulage",
    "CONSUMER_MODE": "sqs-consumer",
    "HAULAGE_QUEUE_URL": "http://127.0.0.1:4566/queue/work",
    "HAULAGE_BUCKET": "files",
}


@pytest.fixture(autouse=True)
def region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"HAULAGE_QUEUE_URL": ""}, "dispatcher and consumer: .* needs HAULAGE_QUEUE_URL"),
        ({"DATABASE_URL": "mysql://127.0.0.1/haulage"}, "DATABASE_URL is not a URL such as"),
        (
            {"HAULAGE_DATABASE_DIRECT_URL": "mysql://127.0.0.1/haulage"},
            "dispatcher and consumer: HAULAGE_DATABASE_DIRECT_URL is not a URL",
        ),
        ({"HAULAGE_BUCKET": ""}, "consumer: kind 'export': .*set HAULAGE_BUCKET"),
        ({"HAULAGE_BUCKET": "s3://haulage"}, "HAULAGE_BUCKET: .*the name of a bucket"),
        ({"HAULAGE_QUEUE_URL": "https://h/1/work.fifo"}, "HAULAGE_QUEUE_URL: .*standard queue"),
        ({"HAULAGE_EXPORT_SQL": "SELECT 1"}, "consumer: kind 'export': .*HAULAGE_EXPORT_SQL must"),
        (
            {"HAULAGE_EXPORT_DATABASE_URL": "mysql://127.0.0.1/x"},
            "consumer: kind 'export': .*HAULAGE_EXPORT_DATABASE_URL is not a URL",
        ),
        ({"HAULAGE_CONSUMER_KINDS": "exports"}, "consumer: HAULAGE_CONSUMER_KINDS: exports"),
        ({"OTEL_METRICS_EXEMPLAR_FILTER": "foo"}, "OTEL_METRICS_EXEMPLAR_FILTER"),
    ],
)
def test_each_thing_that_is_wrong_is_told_with_who_would_not_start(
    change: dict[str, str], told: str
) -> None:
    assert re.match(told, complaints(COMPLETE | change, EVERY)[0])


def test_what_is_complete_has_nothing_wrong() -> None:
    assert complaints(COMPLETE, EVERY) == []


def test_who_needs_no_bucket_may_be_checked_without_one() -> None:
    environment = {name: COMPLETE[name] for name in COMPLETE if name != "HAULAGE_BUCKET"}
    (line,) = complaints(environment, EVERY)
    assert line.startswith("consumer: kind 'export': ")
    assert line.endswith("set HAULAGE_BUCKET: exports are written there")
    assert complaints(environment, ("api", "dispatcher")) == []


def test_a_client_that_aws_cannot_make_is_wrong_where_one_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nowhere")
    (line,) = complaints(COMPLETE, EVERY)
    assert line.startswith("dispatcher and consumer: AWS: no sqs client")
    environment = COMPLETE | {"CONSUMER_MODE": "outbox"}
    assert complaints(environment, ("dispatcher",)) == []


def test_what_is_no_process_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["dispatchers"])


class Careless:
    """The processor of a kind from outside, whose check fails in a way of its own."""

    @staticmethod
    def check_settings(_settings: object) -> None:
        raise KeyError("TOKEN")


KIND = Kind(name="careless", processor="tests.unit.test_check:Careless", input_model=JobInput)


def test_whatever_the_check_of_a_kind_raises_is_told_with_its_kind() -> None:
    environment = COMPLETE | {"HAULAGE_KINDS": "tests.unit.test_check:KIND"}
    (line,) = complaints(environment, EVERY)
    assert line.startswith("consumer: kind 'careless': tests.unit.test_check:Careless: ")
    assert line.endswith("check_settings: KeyError: 'TOKEN'")


class Coded:
    """A type that only its validator knows."""

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(lambda value: value)


class Undescribed(JobInput):
    code: Coded


UNDESCRIBED = Kind("undescribed", Undescribed, "tests.unit.test_check:Careless")


def test_a_model_that_the_api_cannot_describe_is_told_to_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check was content, and the API ended with a traceback."""
    for name, value in (COMPLETE | {"HAULAGE_KINDS": f"{__name__}:UNDESCRIBED"}).items():
        monkeypatch.setenv(name, value)
    assert main([]) == EXIT_MISCONFIGURED
    (line,) = capsys.readouterr().err.splitlines()
    assert "kind 'undescribed': input_model: Undescribed has no JSON schema" in line
