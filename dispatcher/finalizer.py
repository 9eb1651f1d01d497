"""Ends jobs whose work is over but whose counters say otherwise: recounts the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from dispatcher.bulkhead import Bulkhead
from schema.statements.repair import find_idle_jobs, recount_and_finish

if TYPE_CHECKING:
    import datetime as dt
    from uuid import UUID

    from sqlalchemy import Row

    from infra.database import Database

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_QUIET_SECONDS = 30.0
_MOST_TOLD = 100_000


class Finalizer:
    """A job with no live entry has no work left: its end does not depend on the counters."""

    name = "finalizer"

    def __init__(self, database: Database, *, most: int) -> None:
        self._database = database
        self._bulkhead = Bulkhead(database)
        self._most = most
        self._after: tuple[dt.datetime, UUID] | None = None
        self._told: dict[UUID, None] = {}

    async def once(self) -> int:
        """Recount and end up to a batch of idle jobs; return how many were ended."""
        ended = 0
        # Each round goes on where the last one ended, and from the start once that was the end:
        # jobs that cannot be ended, however many, come between no other and its end for long.
        idle_jobs = await self._database.fetch(
            find_idle_jobs(quiet_seconds=_QUIET_SECONDS, most=self._most, after=self._after)
        )
        self._bulkhead.begin()
        for idle in idle_jobs:
            self._after = (idle.requested_at, idle.id)
            with self._bulkhead.compartment(idle.id) as part:
                ended += await self._end(idle)
            if part.news is not None:
                log.error(
                    "finalizer.failed",
                    job=idle.key,
                    correlation_id=idle.correlation_id,
                    exc_info=part.news,
                )
        if len(idle_jobs) < self._most:
            self._after = None
        return ended

    async def _end(self, idle: Row[Any]) -> bool:
        """Recount one job, and say whether that ended it."""
        rows = await self._bulkhead.fetch(recount_and_finish(idle.id))
        for row in rows:
            log.error(
                "finalizer.repaired",
                job=row.key,
                status=row.status,
                correlation_id=row.correlation_id,
                remedy="counters were off; keep the logs of this job for the developers",
            )
        if not rows:
            self._tell_stranded(idle)
        return bool(rows)

    def _tell_stranded(self, job: Row[Any]) -> None:
        """Log a job that has no way on: once, although every pass finds it."""
        if job.id not in self._told:
            log.error(
                "finalizer.stranded",
                job=job.key,
                correlation_id=job.correlation_id,
                remedy="inputs are unfinished and named by no entry; run the doctor",
            )
        self._told.pop(job.id, None)
        self._told[job.id] = None
        while len(self._told) > _MOST_TOLD:
            del self._told[next(iter(self._told))]
