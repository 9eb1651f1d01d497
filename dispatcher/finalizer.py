"""Ends jobs whose work is over but whose counters say otherwise: recounts the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from schema.statements.repair import find_idle_jobs, recount_and_finish

if TYPE_CHECKING:
    from infra.database import Database

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_QUIET_SECONDS = 30.0


class Finalizer:
    """A job with no live entry has no work left: its end does not depend on the counters."""

    name = "finalizer"

    def __init__(self, database: Database, *, most: int) -> None:
        self._database = database
        self._most = most

    async def once(self) -> int:
        """Recount and end up to a batch of idle jobs; return how many were ended."""
        ended = 0
        for idle in await self._database.fetch(
            find_idle_jobs(quiet_seconds=_QUIET_SECONDS, most=self._most)
        ):
            rows = await self._database.fetch(recount_and_finish(idle.id))
            if rows:
                ended += 1
                log.error(
                    "finalizer.repaired",
                    job=rows[0].key,
                    status=rows[0].status,
                    correlation_id=rows[0].correlation_id,
                    remedy="counters were off; keep the logs of this job for the developers",
                )
            else:
                log.error(
                    "finalizer.stranded",
                    job_id=str(idle.id),
                    remedy="inputs are unfinished and named by no entry; run the doctor",
                )
        return ended
