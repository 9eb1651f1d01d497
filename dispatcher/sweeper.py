"""Moves entries to where their job's status wants them, after a pause, a resume or an end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog

from dispatcher.bulkhead import Bulkhead
from schema.lifecycle import TERMINAL_JOB_STATUSES
from schema.statements.control import (
    clear_sweeping,
    end_entries,
    find_sweeping_jobs,
    lock_job,
    lock_sweeping_job,
    move_entries,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Row
    from sqlalchemy.ext.asyncio import AsyncConnection

    from infra.database import Database

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# The job is locked while a batch is ended, and everyone who settles inputs of it waits.
_ENTRIES_TO_END = 500
_INPUTS_TO_END = 2_000
_JOBS_AT_ONCE = 20
_FIRST = UUID(int=0)


class Sweeper:
    """Sweeps each job a batch at a time, in turn, so that a huge one holds up nobody."""

    name = "sweeper"

    def __init__(
        self,
        database: Database,
        *,
        most: int,
        wake: Callable[[], None],
        tell: Callable[[], None],
    ) -> None:
        self._database = database
        self._bulkhead = Bulkhead(database)
        self._most = most
        self._wake = wake
        self._tell = tell
        self._after = _FIRST

    async def once(self) -> int:
        """Sweep one batch of each of some jobs; return how many entries were moved."""
        jobs = await self._database.fetch(find_sweeping_jobs(after=self._after, most=_JOBS_AT_ONCE))
        self._bulkhead.begin()
        moved = 0
        for job in jobs:
            # However this one ends, the next round goes on behind it.
            self._after = job.id
            with self._bulkhead.compartment(job.id) as part:
                moved += await self._sweep(job)
            if part.news is not None:
                log.error(
                    "sweeper.failed",
                    job=job.key,
                    correlation_id=job.correlation_id,
                    exc_info=part.news,
                )
        if len(jobs) < _JOBS_AT_ONCE:
            self._after = _FIRST
        return moved + (self._after != _FIRST)

    async def _sweep(self, job: Row[Any]) -> int:
        if job.status in TERMINAL_JOB_STATUSES:
            ended = await self._end(job)
            moved, is_last = ended.entries, ended.is_last
            if ended.running:
                # Their workers hold nothing any more.
                self._tell()
        else:
            moved = len(await self._bulkhead.fetch(move_entries(job.id, most=self._most)))
            is_last = moved < self._most
            if moved:
                self._wake()
        if is_last and await self._clear(job):
            log.info(
                "sweeper.swept",
                job=job.key,
                status=job.status,
                correlation_id=job.correlation_id,
            )
        return int(moved)

    async def _end(self, job: Row[Any]) -> Row[Any]:
        async def unit(connection: AsyncConnection) -> Row[Any]:
            await connection.execute(lock_job(job.id))
            statement = end_entries(job.id, most=_ENTRIES_TO_END, most_inputs=_INPUTS_TO_END)
            return (await connection.execute(statement)).one()

        return await self._bulkhead.run(unit)

    async def _clear(self, job: Row[Any]) -> bool:
        """End the sweeping if nothing is out of place.

        A settling transaction may insert an entry after the control was committed, but it locks
        the job before it does. So: lock the job, then look again, in a statement that sees what
        was committed until then.
        """

        async def unit(connection: AsyncConnection) -> bool:
            locked = await connection.execute(lock_sweeping_job(job.id, job.control_version))
            if locked.one_or_none() is None:
                return False
            cleared = await connection.execute(clear_sweeping(job.id, job.control_version))
            return cleared.one_or_none() is not None

        return await self._bulkhead.run(unit)
