"""Reading a body for tests: at once, as few inputs are, and by blocks, as many are."""

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from itertools import chain

from api.inputs import Limits
from api.problems import Problem
from api.reading import KindCameLast, Reading
from api.submission import Submission
from schema.kinds import Kind


@dataclass(frozen=True)
class Read:
    submission: Submission
    texts: list[str]
    digest: bytes


def read_whole(
    body: str | bytes, kinds: Mapping[str, Kind], limits: Limits, *, by_lines: bool
) -> Read:
    """Read a body; raise what is wrong with it. Both ways come to the same, or this fails."""
    content = body.encode() if isinstance(body, str) else body

    def reading(enough: int) -> Reading:
        return Reading(
            BytesIO(content), kinds, limits, by_lines=by_lines, enough=enough, digests=True
        )

    try:
        at_once = _at_once(reading(10**9))
    except Problem as problem:
        try:
            _by_blocks(reading(1))
        except Problem as other:
            assert (other.status, other.errors) == (problem.status, problem.errors)
            raise
        raise AssertionError("it is sound by blocks") from problem
    assert _by_blocks(reading(1)) == at_once
    return at_once


def _at_once(reading: Reading) -> Read:
    reading.gather()
    assert reading.submission is not None, "there are no more"
    return Read(reading.submission, reading.gathered(), reading.digest())


def _by_blocks(reading: Reading) -> Read:
    reading.gather()
    while True:
        bodies = list(chain.from_iterable(iter(reading.block, [])))
        try:
            submission = reading.finish()
        except KindCameLast:
            reading.gather_again()
        else:
            return Read(submission, bodies, reading.digest())
