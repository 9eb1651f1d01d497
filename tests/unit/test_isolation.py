"""The pure parts of isolation: caps of a kind, frames, lines of a child, causes of death."""

import asyncio
import json
import logging
import signal
import threading
from typing import Any

import pytest

from consumer.processors.frames import (
    HEAD_BYTES,
    LIMIT_BYTES,
    Garbled,
    answer_outcome,
    length,
    outcome_in,
    read_answer,
)
from consumer.processors.limits import process_died
from consumer.processors.output import Line, Output, read_line
from consumer.watchdog import Watchdog
from infra.process import EXIT_BLOCKED
from schema.kinds import JobInput, Kind
from schema.outcome import Artifact, Failed, Missing, Outcome, Refused, Skipped, Succeeded


@pytest.mark.parametrize(
    ("caps", "reason"),
    [
        ({"time_limit_seconds": 0}, "above 0"),
        ({"memory_limit_bytes": 2**30}, "needs isolation='process'"),
        ({"memory_limit_bytes": 1, "isolation": "process"}, "from 134217728"),
    ],
)
def test_a_kind_whose_caps_make_no_sense_is_none(caps: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Kind("capped", JobInput, "a:b", **caps)


@pytest.mark.parametrize(
    "outcome",
    [
        Succeeded({"rows": [1, None]}, Artifact("key", "s3://b/k", 7, "etag"), reused=False),
        Succeeded(),
        Skipped("why"),
        Missing("what"),
        Refused("InvalidInput", "why"),
        Failed("Fault", "why", 2.5),
    ],
)
def test_an_outcome_is_read_as_it_was_written(outcome: Outcome) -> None:
    written = answer_outcome(outcome)
    assert length(written[:HEAD_BYTES]) == len(written) - HEAD_BYTES
    assert outcome_in(read_answer(written[HEAD_BYTES:])) == outcome


def test_a_result_that_is_too_long_or_no_json_failed() -> None:
    for result, error_class in (
        ({"text": "x" * LIMIT_BYTES}, "ResultTooLong"),
        ({"text": object()}, "TypeError"),
    ):
        read = outcome_in(read_answer(answer_outcome(Succeeded(result))[HEAD_BYTES:]))
        assert isinstance(read, Failed)
        assert read.error_class == error_class


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"{",
        b'{"outcome":"Succeeded"}',
        b'{"outcome":"Lapsed","fields":{"worker":"x"}}',
        b'{"outcome":"Skipped","fields":{"reason":"x","more":1}}',
    ],
)
def test_what_is_no_answer_is_not_believed(payload: bytes) -> None:
    with pytest.raises(Garbled):
        outcome_in(read_answer(payload))
    with pytest.raises(Garbled):
        length(b"\xff\xff\xff\xff")


@pytest.mark.parametrize(
    ("returncode", "message"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-signal.SIGSEGV, "killed by SIGSEGV"),
        (-signal.SIGKILL, "killed by SIGKILL (by the system, if it ran out of memory)"),
        (-60, "killed by signal 60"),
    ],
)
def test_the_cause_of_death_is_named(returncode: int, message: str) -> None:
    assert process_died(returncode) == Failed(
        "ProcessDied",
        f"the processor's process {'was ' if returncode < 0 else ''}{message}",
    )


def test_events_of_a_child_are_read_and_everything_else_is_text() -> None:
    event = {"level": "warning", "event": "it.happened", "rows": 3, "exc_info": 1, "self": 2}
    assert read_line(json.dumps(event).encode()) == Line(
        logging.WARNING, "it.happened", {"rows": 3}
    )
    for text in ("plain", '{"event":"no level"}', '{"level":"odd","event":"x"}', "[]", "1"):
        assert read_line(text.encode()) == Line(logging.INFO, "processor.output", {"line": text})
    assert len(read_line(b"x" * 100_000).fields["line"]) == 2_000
    assert read_line(b"\xff\x00").fields["line"] == "\N{REPLACEMENT CHARACTER}" * 2


async def test_a_line_without_end_takes_no_memory() -> None:
    reader = asyncio.StreamReader()
    for _ in range(100):
        reader.feed_data(b"x" * 8_000)
    reader.feed_data(b"\nnext\n")
    reader.feed_eof()
    await Output(dict).read(reader)


async def test_the_watchdog_ends_a_blocked_process_and_leaves_a_busy_one_alone() -> None:
    ended: list[int] = []
    has_ended = threading.Event()

    def end(code: int) -> None:
        ended.append(code)
        has_ended.set()

    watching = asyncio.create_task(Watchdog(limit_seconds=5, end_process=end).run())
    for _ in range(1_000):
        await asyncio.sleep(0)
    watching.cancel()
    assert not ended

    watching = asyncio.create_task(Watchdog(limit_seconds=2, end_process=end).run())
    await asyncio.sleep(0)
    assert has_ended.wait(30), "this blocks the loop"
    watching.cancel()
    assert ended == [EXIT_BLOCKED]
