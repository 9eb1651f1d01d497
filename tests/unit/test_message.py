"""What a message may say, and what is said of one that is not ours."""

import json
from typing import Any

import pytest

from schema.errors import Undecodable
from schema.message import Trace, decode

JOB = "0198c0de-0000-7000-8000-000000000000"
OURS: dict[str, Any] = {"v": 1, "entry": 7, "job": JOB, "kind": "probe"}


def test_a_message_survives_its_way_and_fields_of_later_versions_are_ignored() -> None:
    message = decode(json.dumps(OURS | {"later": []}), {"correlation_id": "order-42"})
    assert (message.entry_id, str(message.job_id), message.kind) == (7, JOB, "probe")
    assert message.trace == Trace("order-42")
    assert decode(message.body(), message.trace.attributes()) == message


@pytest.mark.parametrize("version", ["\0", "\ud800", "\N{GRINNING FACE}" * 99, ["\0"], 2, "1"])
def test_why_a_message_is_not_ours_is_said_in_a_text_that_anything_takes(version: object) -> None:
    with pytest.raises(Undecodable, match="version") as raised:
        decode(json.dumps(OURS | {"v": version}), {})
    said = str(raised.value)
    assert said.isascii()
    assert said.isprintable()
    assert len(said) < 100


def test_a_version_that_is_the_text_of_ours_is_told_apart_from_it() -> None:
    with pytest.raises(Undecodable, match="version '1' is unknown"):
        decode(json.dumps(OURS | {"v": "1"}), {})


@pytest.mark.parametrize("depth", [100, 900, 960, 990, 2_000, 100_000])
def test_brackets_without_end_are_no_message_however_deep(depth: int) -> None:
    with pytest.raises(Undecodable):
        decode('{"v":' + "[" * depth + "]" * depth + "}", {})
