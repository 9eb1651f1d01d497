import json
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import IO, Any

import pytest

from api.inputs import Limits
from api.problems import Problem
from api.reading import KindCameLast, Reading
from schema.kinds import JobInput, JobOptions, Kind


class Note(JobInput):
    text: str


class Style(JobOptions):
    width: int


KINDS = {
    "note": Kind("note", Note, "unused:unused"),
    "styled": Kind("styled", Note, "unused:unused", options_model=Style),
}
# As what a job of no kind is taken for at first, its inputs are sound.
GUESSED = {**KINDS, "export": Kind("export", Note, "unused:unused")}
MANY = 6_000
# What was gathered at first and the window, each several times over, and what finds duplicates,
# for each input.
MOST_BYTES = 12_000_000 + 120 * MANY


@dataclass
class Peak:
    size: int = 0


@contextmanager
def traced() -> Iterator[Peak]:
    peak = Peak()
    tracemalloc.start()
    try:
        yield peak
    finally:
        _, peak.size = tracemalloc.get_traced_memory()
        tracemalloc.stop()


def write_texts(body: IO[bytes], *, between: bytes) -> None:
    for number in range(MANY):
        text = json.dumps({"text": f"{number} \\ {'x' * 4_000}"}).encode()
        body.write(between + text if number else text)


def reading_of(
    body: IO[bytes], *, by_lines: bool = False, enough: int = 500, kinds: Any = None
) -> Reading:
    limits = Limits(MANY, 2_000_000, MANY)
    kinds = kinds or KINDS
    return Reading(body, kinds, limits, by_lines=by_lines, enough=enough, digests=True)


def test_memory_does_not_grow_with_what_is_read_by_blocks() -> None:
    with tempfile.TemporaryFile() as body:
        body.write(b'{"kind":"note"}\n')
        write_texts(body, between=b"\n")
        reading = reading_of(body, by_lines=True)
        many = 0
        with traced() as peak:
            reading.gather()
            while block := reading.block():
                many += len(block)
        assert many == reading.finish().many_inputs == MANY
        assert body.tell() > 20_000_000
        assert peak.size < MOST_BYTES


@pytest.mark.parametrize("head", [{"kind": "note", "priority": 10}, {"kind": "none"}])
@pytest.mark.parametrize("by_lines", [True, False])
def test_memory_does_not_grow_with_what_is_refused_for_its_head(
    head: dict[str, Any], *, by_lines: bool
) -> None:
    with tempfile.TemporaryFile() as body:
        text = json.dumps(head).encode()
        body.write(text + b"\n" if by_lines else text[:-1] + b',"inputs":[')
        write_texts(body, between=b"\n" if by_lines else b",")
        body.write(b"" if by_lines else b"]}")
        reading = reading_of(body, by_lines=by_lines)
        with traced() as peak, pytest.raises(Problem) as refused:
            reading.gather()
        assert [bad.name for bad in refused.value.errors] == [f"/{list(head)[-1]}"]
        assert body.tell() > 20_000_000
        assert peak.size < MOST_BYTES


@pytest.mark.parametrize(
    ("kinds", "front", "back"),
    [
        # The default is no kind of this server.
        (KINDS, b"", b',"kind":"note"'),
        # What stands in front is wrong for the default.
        (GUESSED, b'"options":{"width":1},', b',"kind":"styled"'),
        # What must be there is not there so far.
        (KINDS, b'"kind":"styled",', b',"options":{"width":1}'),
        (GUESSED, b"", b',"options":{"width":1},"kind":"styled"'),
    ],
)
def test_memory_does_not_grow_where_the_job_stands_behind_its_inputs(
    kinds: dict[str, Kind], front: bytes, back: bytes
) -> None:
    with tempfile.TemporaryFile() as body:
        body.write(b"{" + front + b'"inputs":[')
        write_texts(body, between=b",")
        body.write(b"]" + back + b"}")
        reading = reading_of(body, kinds=kinds)
        with traced() as peak:
            reading.gather()
            many = copied(reading)
        assert many == MANY
        assert body.tell() > 20_000_000
        assert peak.size < MOST_BYTES


def copied(reading: Reading) -> int:
    """Count the inputs that are given by blocks."""
    while True:
        many = 0
        while block := reading.block():
            many += len(block)
        try:
            reading.finish()
        except KindCameLast:
            reading.gather_again()
        else:
            return many


def test_an_option_that_never_comes_is_missing() -> None:
    inputs = [{"text": f"{number}"} for number in range(10)]
    body = json.dumps({"kind": "styled", "inputs": inputs}).encode()
    reading = reading_of(BytesIO(body), enough=2)
    reading.gather()
    with pytest.raises(Problem) as refused:
        copied(reading)
    assert [bad.name for bad in refused.value.errors] == ["/options/width"]


def test_few_inputs_are_gathered_where_they_are_large() -> None:
    texts = [json.dumps({"text": f"{number}{'x' * 1_000_000}"}) for number in range(40)]
    body = "\n".join(['{"kind":"note"}', *texts]).encode()
    reading = reading_of(BytesIO(body), by_lines=True)
    reading.gather()
    assert reading.submission is None
    assert len(reading.gathered()) == 34
    assert copied(reading) == 40


def test_a_kind_that_is_given_twice_is_named_and_not_read_for_ever() -> None:
    """The inputs were read again for each of the two kinds in turn, until the stack was full."""
    body = b'{"kind":"note","inputs":[{"text":"a"}],"kind":"styled"}'
    with pytest.raises(Problem) as refused:
        reading_of(BytesIO(body)).gather()
    assert [bad.name for bad in refused.value.errors] == ["/kind"]
