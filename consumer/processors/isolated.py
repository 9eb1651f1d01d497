"""Runs the processor of a kind in child processes, one input at a time in each.

Whatever a processor does to its process becomes an outcome of the input that it had. Interrupting
a run kills its child: there is no waiting for a processor that does not listen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from consumer.processors.limits import memory_limit
from consumer.processors.verdicts import outcome_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumer.processors.children import Children
    from infra.queue.protocol import Claim, ClaimedInput
    from schema.kinds import Kind
    from schema.outcome import Outcome


class Isolated:
    """A runner whose processor is elsewhere; one of many inputs at once gets one at a time."""

    together = 1

    def __init__(self, kind: Kind, children: Children) -> None:
        self._kind = kind
        self._children = children
        self._limit = kind.memory_limit_bytes

    async def run(self, claim: Claim, inputs: Sequence[ClaimedInput]) -> list[Outcome]:
        """Give an outcome for each input, in order; raises nothing but cancellation."""
        return [await self._run(replace(claim, inputs=(input_,))) for input_ in inputs]

    async def _run(self, claim: Claim) -> Outcome:
        try:
            child = await self._children.lend(self._kind)
        except Exception as error:  # noqa: BLE001 - becomes the outcome: there is no process to be had
            return outcome_of(error)
        try:
            outcome = await child.run(claim)
            if self._limit is not None and outcome == memory_limit(self._limit):
                child.kill()  # it may never give the memory back
        finally:
            self._children.take_back(child)
        return outcome
