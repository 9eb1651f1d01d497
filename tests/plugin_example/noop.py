"""Kinds that do nothing, to measure and test everything around them.

``HAULAGE_KINDS=tests.plugin_example.noop:NOOP,tests.plugin_example.noop:NOOP_MANY``, and
``NOOP_HUNDRED``, which takes fewer at once. An input is any JSON object.
"""

from collections.abc import Sequence
from dataclasses import replace

from pydantic import BaseModel, ConfigDict

from consumer.processors.protocol import Resources, Work
from schema.chunking import ChunkBounds
from schema.kinds import Kind
from schema.outcome import Outcome, Succeeded

_DONE = Succeeded()


class NoopInput(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class NoopProcessor:
    """Does nothing with one input at a time."""

    def __init__(self, resources: Resources) -> None:
        pass

    async def process(self, work: Work) -> Outcome:
        return _DONE


class NoopManyProcessor:
    """Does nothing with many inputs at once."""

    def __init__(self, resources: Resources) -> None:
        pass

    async def process_many(self, works: Sequence[Work]) -> Sequence[Outcome]:
        return [_DONE] * len(works)


NOOP = Kind("noop", NoopInput, "tests.plugin_example.noop:NoopProcessor")
NOOP_MANY = Kind("noop-many", NoopInput, "tests.plugin_example.noop:NoopManyProcessor")
NOOP_HUNDRED = replace(NOOP_MANY, name="noop-hundred", chunk=ChunkBounds(maximum=100))
NOOP_ISOLATED = Kind(
    "noop-isolated", NoopInput, "tests.plugin_example.noop:NoopProcessor", isolation="process"
)
