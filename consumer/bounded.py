"""Bounds what runs inside this process: in time, and in how long it may ignore its cancellation.

A coroutine can swallow ``CancelledError`` and run on. It cannot be stopped then, but it must not
hold up others: after a grace its task is left alone, its slot stays taken, and the process, once
drained, ends without waiting for it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from consumer.processors.limits import cancelled, time_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumer.intake import Intake
    from consumer.work import Runner
    from infra.queue.protocol import Claim, ClaimedInput
    from schema.outcome import Outcome

    Running = asyncio.Task[Sequence[Outcome]]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Bounded:
    """Runs another runner in a task of its own, which it can leave behind."""

    def __init__(
        self,
        runner: Runner,
        intake: Intake,
        *,
        time_limit_seconds: float | None,
        grace_seconds: float,
    ) -> None:
        self.together = runner.together
        self._runner = runner
        self._intake = intake
        self._limit = time_limit_seconds
        self._grace = grace_seconds
        self._left: set[Running] = set()

    async def run(self, claim: Claim, inputs: Sequence[ClaimedInput]) -> Sequence[Outcome]:
        """Give an outcome for each input, in order; ends within the grace once cancelled."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        task: Running = loop.create_task(self._runner.run(claim, inputs), name="processor")
        # Awaiting the task itself would hand on a cancellation, and then wait without end.
        task.add_done_callback(lambda _: None if ended.done() else ended.set_result(None))
        try:
            if self._limit is None:
                await ended
            else:
                async with asyncio.timeout(self._limit):
                    await ended
        except asyncio.CancelledError:
            if not await self._end(task, claim, inputs) or task.cancelled():
                raise
            # What ended in spite of its cancellation has an outcome, and may keep it.
            return task.result()
        except TimeoutError:
            assert self._limit is not None, "there is no timeout without a limit"
            await self._end(task, claim, inputs)
            return [time_limit(self._limit)] * len(inputs)
        return [cancelled()] * len(inputs) if task.cancelled() else task.result()

    async def _end(self, task: Running, claim: Claim, inputs: Sequence[ClaimedInput]) -> bool:
        """Cancel the task and wait for it within the grace; false when it had to be left alone."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._grace
        task.cancel()
        while not task.done() and (left := deadline - clock()) > 0:
            with suppress(asyncio.CancelledError):  # told again; the grace is short anyway
                await asyncio.wait({task}, timeout=left)
        if task.done():
            return True
        self._intake.withhold_slot()
        self._left.add(task)
        fields = {
            "kind": claim.kind,
            "job": claim.job_key,
            "entry": claim.entry_id,
            "ordinals": [input_.ordinal for input_ in inputs][:10],
        }
        task.add_done_callback(lambda ended: self._came_back(ended, fields))
        log.error(
            "processor.abandoned",
            **fields,
            grace_seconds=self._grace,
            slots_withheld=self._intake.withheld,
            slots=self._intake.slots,
            remedy="it swallows CancelledError; mend it, or give its kind isolation='process'",
        )
        return False

    def _came_back(self, task: Running, fields: dict[str, object]) -> None:
        self._left.discard(task)
        self._intake.return_slot()
        error = None if task.cancelled() else task.exception()
        log.warning("processor.came_back", **fields, error=error and type(error).__name__)
