"""Squares numbers, many at once: HAULAGE_KINDS=tests.plugin_example.square:SQUARE."""

from collections.abc import Sequence

from consumer.processors.protocol import Resources, Work
from schema.chunking import ChunkBounds
from schema.kinds import JobInput, Kind
from schema.outcome import Outcome, Refused, Succeeded


class SquareInput(JobInput):
    number: int


class SquareProcessor:
    def __init__(self, resources: Resources) -> None:
        """Take nothing."""

    async def process_many(self, works: Sequence[Work]) -> Sequence[Outcome]:
        """Give an outcome for each, in order; one bad input must not fail its neighbours."""
        return [_squared(work) for work in works]


def _squared(work: Work) -> Outcome:
    if not isinstance(work.body, SquareInput):
        return Refused("InvalidInput", "not an input of kind square")
    return Succeeded({"square": work.body.number**2})


SQUARE = Kind(
    name="square",
    input_model=SquareInput,
    processor="tests.plugin_example.square:SquareProcessor",
    chunk=ChunkBounds(minimum=10, maximum=500),
)
