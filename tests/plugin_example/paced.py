"""A kind whose inputs take as long as they say.

``HAULAGE_KINDS=tests.plugin_example.paced:PACED``.
"""

import asyncio

from pydantic import Field

from consumer.processors.protocol import Resources, Work
from schema.errors import InvalidInput
from schema.kinds import JobInput, Kind
from schema.outcome import Outcome, Succeeded

_DONE = Succeeded()


class PacedInput(JobInput):
    milliseconds: int = Field(ge=0, le=60_000)


class PacedProcessor:
    """Waits, as for a neighbour."""

    def __init__(self, resources: Resources) -> None:
        pass

    async def process(self, work: Work) -> Outcome:
        if not isinstance(work.body, PacedInput):
            raise InvalidInput("not an input of kind paced")
        await asyncio.sleep(work.body.milliseconds / 1000)
        return _DONE


PACED = Kind("paced", PacedInput, "tests.plugin_example.paced:PacedProcessor")
