"""What a processor raises, whatever it is, becomes the outcome of its input."""

import asyncio
from collections.abc import Sequence

import pytest

from consumer.processors.protocol import Work
from consumer.processors.running import OneByOne, Together
from schema.kinds import JobInput, Kind
from schema.outcome import Failed, Outcome, Succeeded
from tests.claims import claim_of


class Panic(BaseException):
    """What bindings of other languages raise: no ``Exception``."""


class Number(JobInput):
    n: int


KIND = Kind("number", Number, "unused:unused")


class Raising:
    """Raises what it is told to at input 1, in both ways of being called."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def process(self, work: Work) -> Outcome:
        if work.ordinal == 1:
            raise self._error
        return Succeeded()

    async def process_many(self, works: Sequence[Work]) -> list[Outcome]:
        raise self._error


ERRORS = [SystemExit(3), KeyboardInterrupt(), Panic("at the disco"), ZeroDivisionError()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_an_input_that_ends_more_than_itself_has_failed(error: BaseException) -> None:
    claim = claim_of("number", {"n": 0}, {"n": 1})
    failed = Failed(type(error).__name__, str(error) or "(no message)")
    one_by_one = await OneByOne(KIND, Raising(error)).run(claim, claim.inputs)
    assert one_by_one == [Succeeded(), failed]
    together = await Together(KIND, Raising(error)).run(claim, claim.inputs)
    assert together == [failed, failed]


async def test_cancellation_is_no_outcome() -> None:
    claim = claim_of("number", {"n": 0}, {"n": 1})
    for runner in (OneByOne, Together):
        with pytest.raises(asyncio.CancelledError):
            await runner(KIND, Raising(asyncio.CancelledError())).run(claim, claim.inputs)
