"""Group commit: what ended while the last commit ran goes in the next one.

At low load an outcome is committed at once; at high load hundreds share one commit.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import structlog

from infra.retry import jittered
from infra.settle import Settled, Settlement, settle
from schema.errors import Unavailable
from schema.lifecycle import InputStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from consumer.lease import Lease
    from infra.database import Database
    from schema.outcome import Backoff

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_AWAY_BASE_SECONDS = 0.1
_AWAY_CAP_SECONDS = 2.0


class Settler:
    """Commits outcomes in batches, one commit at a time."""

    def __init__(
        self,
        database: Database,
        *,
        worker: str,
        backoffs: Mapping[str, Backoff],
        most: int,
        events: bool = False,
    ) -> None:
        self._database = database
        self._worker = worker
        self._backoffs = backoffs
        self._most = most
        self._events = events
        self._waiting: list[tuple[Lease, Settlement]] = []
        self._wanted = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def add(self, lease: Lease, settlements: Sequence[Settlement]) -> None:
        """Hand over outcomes; ``lease.settled()`` says when they are committed."""
        lease.await_settling(len(settlements))
        self._waiting.extend((lease, settlement) for settlement in settlements)
        self._wanted.set()
        if len(self._waiting) >= self._most:
            self._room.clear()

    async def room(self) -> None:
        """Wait until less than a whole commit waits: claiming may not run ahead of settling."""
        await self._room.wait()

    async def run(self) -> None:
        """Commit what is handed over until cancelled; wait out a database that is away."""
        while True:
            await self._wanted.wait()
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            if not self._waiting:
                self._wanted.clear()
            if len(self._waiting) < self._most:
                self._room.set()
            if batch:
                await self._commit(batch)

    async def _commit(self, batch: Sequence[tuple[Lease, Settlement]]) -> None:
        failures = 0
        while True:
            try:
                lines = await settle(
                    self._database,
                    self._worker,
                    [settlement for _, settlement in batch],
                    backoffs=self._backoffs,
                    jitter=random.random,
                    events=self._events,
                )
                break
            except Unavailable as error:
                failures += 1
                pause = jittered(
                    failures, base_seconds=_AWAY_BASE_SECONDS, cap_seconds=_AWAY_CAP_SECONDS
                )
                if failures == 1:
                    log.warning("settle.away", inputs=len(batch), error=str(error))
                await asyncio.sleep(pause)
        for (lease, _), line in zip(batch, lines, strict=True):
            _tell(line)
            lease.note_settled(accepted=line.accepted)


def _tell(line: Settled) -> None:
    """Log what an operator may have to act on; successes are told per claim."""
    settlement, verdict = line.settlement, line.verdict
    if line.accepted and verdict.error_class is None:
        return
    write = log.error if verdict.status is InputStatus.DLQ else log.warning
    write(
        "input.failed" if line.accepted else "input.refused_late",
        job=settlement.claim.job_key,
        ordinal=settlement.input.ordinal,
        kind=settlement.claim.kind,
        status=verdict.status.value,
        attempt=settlement.input.attempts + 1,
        max_attempts=settlement.claim.max_attempts,
        error_class=verdict.error_class,
        error=verdict.error_message,
        retry_in_seconds=None if verdict.delay_seconds is None else round(verdict.delay_seconds, 1),
        correlation_id=settlement.claim.trace.correlation_id,
    )
