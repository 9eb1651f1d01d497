"""Settings, ports, the env file and the record of processes."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infra.settings import Settings
from localstack import children, env_file, processes
from localstack.children import check_settings
from localstack.interruption import Interrupted, Interruption
from localstack.options import differences
from localstack.ports import LOOPBACK, Ports, PortTakenError, free_port
from localstack.processes import Identity, ProcessError
from localstack.settings import LocalSettings, SettingsError
from localstack.stack import Stack
from localstack.state import State
from localstack.together import both

CHECKOUT = Path(__file__).resolve().parents[2]
IDENTITY = Identity("consumer-1", 4_000_000, 1.5, ("python", "-m", "consumer"), "log")


def test_what_make_gives_comes_before_the_environment() -> None:
    environment = {"HAULAGE_LOCAL_PORT": "9000", "HAULAGE_LOCAL_CONSUMERS": "3", "HAULAGE_URL": "x"}
    settings = LocalSettings.read(environment, {"port": "9001", "mode": "outbox"})
    assert (settings.port, settings.consumers, settings.mode) == (9001, 3, "outbox")


@pytest.mark.parametrize(
    ("environment", "given", "complaint"),
    [
        ({"HAULAGE_LOCAL_PROT": "1"}, {}, "HAULAGE_LOCAL_PROT"),
        ({}, {"mode": "sqs"}, "sqs-consumer, outbox"),
        ({}, {"consumers": "-1"}, "CONSUMERS"),
        ({}, {"port": "70000"}, "PORT"),
        ({}, {"port": "٣"}, "PORT"),
    ],
)
def test_a_setting_that_is_not_understood_is_named(
    environment: dict[str, str], given: dict[str, str | None], complaint: str
) -> None:
    with pytest.raises(SettingsError, match=complaint):
        LocalSettings.read(environment, given)


def test_a_taken_port_is_an_error_only_when_it_was_asked_for() -> None:
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTakenError, match=str(port)):
            Ports().choose("the API", port, 1)
        with Ports() as ports:
            assert ports.choose("the API", None, port) != port


def test_no_port_is_promised_twice_within_a_stack_or_to_two_that_come_up_at_once() -> None:
    port = free_port()
    with Ports() as one, Ports() as other:
        chosen = [ports.choose("it", None, port) for ports in (one, other, one)]
        assert len(set(chosen)) == 3
        with pytest.raises(PortTakenError, match=str(chosen[0])):
            other.choose("it", chosen[0], 1)
    with Ports() as later:
        assert later.choose("it", chosen[0], 1) == chosen[0]


def test_the_env_file_is_private_and_a_shell_reads_the_same(tmp_path: Path) -> None:
    values = {"KEY": 'it\'s $HOME `x` "y"', "URL": "postgresql://a:b@127.0.0.1/c?d=e&f"}
    path = tmp_path / "local" / "env"
    env_file.write(path, {})
    env_file.write(path, values)
    assert path.stat().st_mode & 0o777 == 0o600
    assert env_file.read(path) == values
    script = f'. {path} && printf "%s\\n%s" "$KEY" "$URL"'
    shell = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert shell.stdout.split("\n") == list(values.values())


def test_processes_are_recorded_once_by_name_and_read_back_the_same(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.record(IDENTITY)
    state.supervise()
    newer = replace(IDENTITY, pid=4_000_001)
    state.record(newer)
    assert State(tmp_path).processes() == [newer]
    assert State(tmp_path).supervisor() is None  # it is us
    state.clear()
    assert State(tmp_path).processes() == []


@pytest.mark.parametrize(
    "content",
    [
        "", "{}", "[]", "null", '"x"', '{"supervisor": 1, "processes": []}',
        '{"supervisor": null, "processes": [{"name": "api"}]}',
        '{"supervisor": null, "processes": [{"name": "api", "command": "python"}]}',
    ],
)  # fmt: skip
def test_a_state_that_is_not_as_it_is_written_says_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content)
    state = State(tmp_path)
    assert (state.processes(), state.supervisor()) == ([], None)
    state.record(IDENTITY)
    assert state.processes() == [IDENTITY]


def test_one_at_a_time_and_waiting_can_be_interrupted(tmp_path: Path) -> None:
    impatient = Interruption()
    impatient.request()
    with (
        State(tmp_path).alone(Interruption()),
        pytest.raises(Interrupted),
        State(tmp_path).alone(impatient),
    ):
        pytest.fail("two at a time")


def test_when_one_of_two_fails_the_other_is_told_to_stop() -> None:
    def fails(_: Interruption) -> None:
        raise SettingsError("the reason")

    def waits(interruption: Interruption) -> None:
        interruption.pause(60)

    with pytest.raises(SettingsError, match="the reason"):
        both(waits, fails, Interruption())


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """A stack of which the API lives, and the others are dead."""
    stack = Stack(tmp_path, LocalSettings(), Interruption())
    env_file.write(
        stack.env_path,
        {
            "CONSUMER_MODE": "outbox",
            "HAULAGE_URL": "http://127.0.0.1:8080",
            "DATABASE_URL": "postgresql://haulage:secret@127.0.0.1:5433/haulage",
            "AWS_ENDPOINT_URL": "http://127.0.0.1:4566",
        },
    )
    api = processes.start(
        "api",
        [sys.executable, "-c", "import signal; signal.pause()"],
        log=tmp_path / "log",
        environment={
            "HAULAGE_LOG_FORMAT": "json", "HAULAGE_CONCURRENCY": "4", "HAULAGE_BUCKET": "ours",
            "OTEL_BSP_SCHEDULE_DELAY": "9", "PYTHONPATH": "/ours",
        },
        folder=tmp_path,
    )  # fmt: skip
    stack.state.record(api)
    for name in ("dispatcher-1", "consumer-1", "consumer-2"):
        stack.state.record(replace(IDENTITY, name=name))
    yield stack
    processes.stop([api], grace_seconds=5)


def test_options_that_a_running_stack_does_not_have_are_named(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = {"mode": "outbox", "consumers": "2", "dispatchers": "1", "port": "8080"}
    same |= {"postgres_port": "5433", "aws_port": "4566", "demo_timeout_seconds": "9"}
    monkeypatch.setenv("HAULAGE_LOG_FORMAT", "json")
    monkeypatch.setenv("HAULAGE_BUCKET", "theirs")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert stack.differences({}) == stack.differences(same) == []
    monkeypatch.setenv("HAULAGE_LOG_FORMAT", "console")
    monkeypatch.setenv("HAULAGE_LOG_LEVEL", "debug")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    asked = {"mode": "sqs-consumer", "consumers": "3", "port": "9000", "aws_port": "4567"}
    assert stack.differences(asked) == [
        ("MODE", "outbox", "sqs-consumer"),
        ("CONSUMERS", "2", "3"),
        ("PORT", "8080", "9000"),
        ("AWS_PORT", "4566", "4567"),
        ("HAULAGE_LOG_FORMAT", "json", "console"),
        ("HAULAGE_LOG_LEVEL", "unset", "debug"),
        ("OTEL_BSP_SCHEDULE_DELAY", "9", "10"),
        ("PYTHONPATH", "/ours", "/theirs"),
    ]


def test_a_difference_shows_no_key_for_a_collector() -> None:
    name = "OTEL_EXPORTER_OTLP_TRACES_HEADERS"
    has = {name: "x-honeycomb-team=k1", "HAULAGE_ITS_PASSWORD": "p1"}
    wanted = {name: "x-honeycomb-team=k2", "OTEL_EXPORTER_OTLP_HEADERS": "x-team=k3"}
    assert differences(has, {**wanted, "HAULAGE_ITS_PASSWORD": "p2"}) == [
        (name, "***", "***"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "unset", "***"),
        ("HAULAGE_ITS_PASSWORD", "***", "***"),
    ]


def test_a_stack_that_is_started_anew_says_who_died_and_what_changes(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    impatient = Stack(stack.checkout, stack.settings, Interruption())
    impatient.interruption.request()
    with pytest.raises(Interrupted):
        impatient.up(attached=False)
    said = capsys.readouterr().out
    assert "dispatcher-1, consumer-1, consumer-2 died: the rest is ended" in said
    for change in (
        "MODE was outbox, is now sqs-consumer",
        "CONSUMERS was 2, is now 1",
        "HAULAGE_LOG_FORMAT was json, is now console",
        "HAULAGE_CONCURRENCY was 4, is now unset",
    ):
        assert change in said
    assert "DISPATCHERS" not in said
    assert "BUCKET" not in said


def test_a_stack_whose_postgres_died_too_is_all_started_anew(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.state.record(replace(IDENTITY, name="postgres"))
    impatient = Stack(stack.checkout, stack.settings, Interruption())
    impatient.interruption.request()
    with pytest.raises(Interrupted):
        impatient.up(attached=False)
    assert "postgres died: the rest is ended, and all started anew." in capsys.readouterr().out


def test_a_stack_of_which_a_stranger_may_answer_is_not_up(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    (api,) = [one for one in stack.state.processes() if one.name == "api"]
    stack.state.clear()
    stack.state.record(api)
    assert stack.is_up()
    with socket.create_server((LOOPBACK, 0)) as stranger:
        port = stranger.getsockname()[1]
        stack.state.record(replace(api, port=port))
        assert not stack.is_up()
        impatient = Stack(stack.checkout, stack.settings, Interruption())
        impatient.interruption.request()
        with pytest.raises(Interrupted):
            impatient.up(attached=False)
    said = capsys.readouterr().out
    assert f"api does not listen on its port, {port}: the rest is ended" in said


def test_every_setting_that_names_a_neighbour_is_the_stacks_own() -> None:
    bare = {name.removeprefix("HAULAGE_").lower() for name in children.OWN}
    neighbours = {
        field for field in Settings.model_fields if re.search("url$|pooler$|bucket$|mode$", field)
    }
    assert len(neighbours) > 1
    assert neighbours <= bare


def test_no_process_of_the_stack_is_led_to_another_database_queue_bucket_or_account(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = {name: f"postgresql://other/{name}" for name in children.OWN}
    others |= {"AWS_PROFILE": "other", "AWS_ENDPOINT_URL_SQS": "http://other", "PGHOST": "other"}
    for name, value in others.items():
        monkeypatch.setenv(name, value)
    handed_on = children.inherited()
    assert not others.keys() & handed_on.keys()
    settings = Settings.from_environment({**handed_on, "DATABASE_URL": "postgresql://ours/ours"})
    assert settings.session_url == ("postgresql://ours/ours", "DATABASE_URL")


def test_what_does_not_count_is_named_before_anything_starts(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "HAULAGE_DATABASE_DIRECT_URL": "postgresql://other/direct",
        "HAULAGE_LOG_LEVEL": "loud",  # it ends here
    }
    up = [sys.executable, "-m", "localstack", "up", "--detach"]
    ended = subprocess.run(
        up, env=environment, cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "Passed over, " in ended.stdout
    assert "HAULAGE_DATABASE_DIRECT_URL" in ended.stdout
    assert "Starting" not in ended.stdout
    assert "HAULAGE_LOG_LEVEL" in ended.stderr


# Kinds of somebody else, and what is wrong with them.
SHOP = """
from schema.kinds import JobInput, Kind
SOUND = Kind("sound", JobInput, "worker:make")
LAME = Kind("lame", JobInput, "worker:nothing")
def __getattr__(name):
    raise ZeroDivisionError(name)
"""


@pytest.mark.parametrize(
    ("wrong", "level", "complaint"),
    [
        ("", "loud", "HAULAGE_LOG_LEVEL"),
        ("shop:SOUND, nowhere:KIND", "info", "HAULAGE_KINDS: .* No module named 'nowhere'"),
        ("shop:FAILING", "info", "HAULAGE_KINDS: .* ZeroDivisionError: FAILING"),
        ("shop:LAME", "info", "kind 'lame': .*worker.*nothing"),
    ],
)
def test_what_the_processes_would_refuse_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: str, level: str, complaint: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HAULAGE_KINDS", "shop:SOUND")
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "worker.py").write_text("def make(resources): ...")
    check_settings("sqs-consumer", CHECKOUT, Interruption())
    monkeypatch.setenv("HAULAGE_KINDS", wrong)
    monkeypatch.setenv("HAULAGE_LOG_LEVEL", level)
    with pytest.raises(ProcessError, match=complaint):
        check_settings("outbox", CHECKOUT, Interruption())
