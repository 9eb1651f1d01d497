"""A kind that fails as work does: some inputs at first, a few for good.

``HAULAGE_KINDS=tests.plugin_example.flaky:FLAKY``. An input is ``{"n": 17}``: one in twenty fails
at its first attempt, one in a hundred names nothing that exists, one in two hundred is refused.
"""

import asyncio

from consumer.processors.protocol import Resources, Work
from schema.errors import Fault, InvalidInput, NotFound
from schema.kinds import JobInput, Kind
from schema.outcome import Backoff, Outcome, Succeeded

FAILS_ONCE, IS_MISSING, IS_REFUSED = (20, 5), (100, 1), (200, 2)
_WORK_SECONDS = 0.002


class FlakyInput(JobInput):
    n: int


class FlakyProcessor:
    """Takes a moment, and then does as its input's number says."""

    def __init__(self, resources: Resources) -> None:
        pass

    async def process(self, work: Work) -> Outcome:
        await asyncio.sleep(_WORK_SECONDS)
        assert isinstance(work.body, FlakyInput)
        if has(work.body.n, IS_REFUSED):
            raise InvalidInput(f"{work.body.n} cannot be done")
        if has(work.body.n, IS_MISSING):
            raise NotFound(f"{work.body.n} names nothing")
        if has(work.body.n, FAILS_ONCE) and work.attempt == 1:
            raise Fault(f"{work.body.n} is not there yet")
        return Succeeded({"n": work.body.n})


def has(number: int, rule: tuple[int, int]) -> bool:
    """Say whether a number is one of those that the rule picks: one in so many, from a place."""
    every, place = rule
    return number % every == place


FLAKY = Kind(
    "flaky",
    FlakyInput,
    "tests.plugin_example.flaky:FlakyProcessor",
    backoff=Backoff(base_seconds=1.0, cap_seconds=4.0),
)
