"""Removes what is older than its retention, a small batch of each sort at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from dispatcher.bulkhead import Bulkhead
from infra.row_by_row import RowByRow
from schema.statements import retention

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sqlalchemy import Row

    from infra.database import Database
    from infra.settings import Settings

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Retention:
    """For how many days each sort of record is kept; 0: for ever."""

    jobs_days: float
    attempts_days: float
    parked_messages_days: float
    redrives_days: float

    @classmethod
    def from_settings(cls, settings: Settings) -> Retention:
        """Take what the settings say."""
        return cls(
            jobs_days=settings.retain_jobs_days,
            attempts_days=settings.retain_attempts_days,
            parked_messages_days=settings.retain_parked_messages_days,
            redrives_days=settings.retain_redrives_days,
        )


class Pruner:
    """Takes only rows that nobody else has locked: instances share the work and never wait.

    Without ``events_are_sent`` no event keeps a job: there is no queue for them here.

    After a round that found nothing it rests: retention counts days, and looking for what is past
    it was a quarter of what an idle dispatcher cost.
    """

    name = "pruner"

    def __init__(
        self,
        database: Database,
        *,
        keep: Retention,
        most: int,
        events_are_sent: bool = True,
        most_inputs: int = 5_000,
        rest_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bulkhead = Bulkhead(database)
        self._rows = RowByRow(database, doing="mark as past its retention")
        self._keep = keep
        self._most = most
        self._events_are_sent = events_are_sent
        self._most_inputs = most_inputs
        self._rest_seconds = rest_seconds
        self._clock = clock
        self._rests_until = clock()

    async def once(self) -> int:
        """Remove a batch of each sort; return how many rows were marked or removed."""
        if self._clock() < self._rests_until:
            return 0
        keep, many = self._keep, self._most_inputs
        self._bulkhead.begin()
        found = 0
        if keep.jobs_days:
            marking = retention.mark_prunable_jobs(
                keep.jobs_days, most=self._most, events_are_sent=self._events_are_sent
            )
            found += len(await self._each("jobs to mark", self._rows.fetch(marking)))
        # What was once marked has begun to go, whatever the setting says now.
        jobs = inputs = events = 0
        removing = retention.prune_marked_jobs(most_jobs=self._most, most_inputs=many)
        for pruned in await self._each("jobs", self._bulkhead.fetch(removing)):
            jobs, inputs, events = pruned.jobs, pruned.inputs, pruned.events
        found += jobs + inputs + events
        for records, days, statement in (
            ("attempts", keep.attempts_days, retention.prune_attempts),
            ("parked messages", keep.parked_messages_days, retention.prune_messages),
            ("redrives", keep.redrives_days, retention.prune_redrives),
        ):
            if days:
                fetching = self._bulkhead.fetch(statement(days, most=many))
                found += len(await self._each(records, fetching))
        if found:
            log.info("pruner.pruned", rows=found, jobs=jobs, inputs=inputs)
        else:
            self._rests_until = self._clock() + self._rest_seconds
        return found

    async def _each(
        self, records: str, fetching: Awaitable[Sequence[Row[Any]]]
    ) -> Sequence[Row[Any]]:
        with self._bulkhead.compartment(records) as part:
            return await fetching
        if part.news is not None:
            log.error("pruner.failed", records=records, exc_info=part.news)
        return ()
