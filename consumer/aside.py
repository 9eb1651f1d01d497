"""Outcomes of jobs in other hands: each job's are tried again apart, and hold up no other's."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from infra.patience import shortened
from infra.retry import jittered, sleep_unless
from infra.telemetry.logs import traced

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from consumer.lease import Lease
    from infra.settle import Settlement

    Waiting = tuple[Lease, Settlement]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_BASE_SECONDS = 0.1
_CAP_SECONDS = 2.0
# An attempt holds the job's entries while it waits, and their leases cannot be extended meanwhile:
# it waits for a fraction of what the first one did, and of that for less with each further job.
_SHARE_OF_PATIENCE = 0.25
# A job costs what was in hand of it when it was put aside. Where so many are in other hands, it is
# everybody's trouble, and nothing more is claimed.
MOST_JOBS = 100
HELD_REMEDY = "end the session that holds a row of it: its own, of an entry, of an input, of a file"


class _Job(NamedTuple):
    since: float
    waiting: list[Waiting]


class Aside:
    """Keeps what could not be settled, by job, and tries until it can be, or the drain is over."""

    def __init__(
        self,
        commit: Callable[[Sequence[Waiting], float], Awaitable[Sequence[Waiting]]],
        lose: Callable[[Sequence[Waiting]], None],
        *,
        most: int,
        lock_seconds: float,
        given_up: asyncio.Event,
    ) -> None:
        self._commit = commit
        self._lose = lose
        self._most = most
        self._lock_seconds = lock_seconds * _SHARE_OF_PATIENCE
        self._given_up = given_up
        self._jobs: dict[UUID, _Job] = {}
        self._wanted = asyncio.Event()
        self._news = asyncio.Event()
        self.room = asyncio.Event()
        self.room.set()

    @property
    def jobs(self) -> dict[UUID, Any]:
        """Give the jobs that are put aside: what is given changes with them."""
        return self._jobs

    def put(self, waiting: Sequence[Waiting]) -> None:
        """Put outcomes aside, and with them whatever is to come of their jobs."""
        if not waiting:
            return
        for lease, settlement in waiting:
            claim = settlement.claim
            if not self.takes(lease, [settlement]):
                self._jobs[claim.job_id] = _Job(time.monotonic(), [(lease, settlement)])
                with traced(claim.trace, job=claim.job_key, entry=claim.entry_id):
                    log.warning("settle.put_aside", kind=claim.kind, remedy=HELD_REMEDY)
        self._news.set()
        self._note()

    def takes(self, lease: Lease, settlements: Sequence[Settlement]) -> bool:
        """Take outcomes of a job that is put aside; false if it is not."""
        job = self._jobs.get(lease.claim.job_id)
        if job is None:
            return False
        job.waiting.extend((lease, settlement) for settlement in settlements)
        return True

    async def run(self) -> None:
        """Try what is put aside again and again, ever more rarely, until cancelled."""
        pause = sleep_unless(self._news, self._given_up)
        rounds_in_vain = 0
        while True:
            await self._wanted.wait()
            self._news.clear()
            rounds_in_vain = 0 if await self._round() else rounds_in_vain + 1
            self._note()
            if self._jobs:
                await pause(
                    jittered(rounds_in_vain, base_seconds=_BASE_SECONDS, cap_seconds=_CAP_SECONDS)
                )

    async def _round(self) -> bool:
        """Try each job once; say whether any could be settled."""
        lock_seconds = self._lock_seconds
        is_progress = False
        for job_id in list(self._jobs):
            if await self._settle(job_id, lock_seconds):
                is_progress = True
            else:
                lock_seconds = shortened(lock_seconds)
        return is_progress

    async def _settle(self, job_id: UUID, lock_seconds: float) -> bool:
        """Settle what waits of a job, commit by commit; say whether nothing of it is left."""
        job = self._jobs[job_id]
        claim = job.waiting[0][0].claim
        while job.waiting:
            batch = job.waiting[: self._most]
            is_last_try = self._given_up.is_set()
            left = await self._commit(batch, lock_seconds)
            job.waiting[: len(batch)] = left
            if left and is_last_try:
                del self._jobs[job_id]
                self._lose(job.waiting)
                return False
            if left:
                return False
        del self._jobs[job_id]
        with traced(claim.trace, job=claim.job_key):
            aside_seconds = round(time.monotonic() - job.since, 1)
            log.info("settle.caught_up", kind=claim.kind, aside_seconds=aside_seconds)
        return True

    def _note(self) -> None:
        for event, is_so in (
            (self._wanted, bool(self._jobs)),
            (self.room, len(self._jobs) < MOST_JOBS),
        ):
            if is_so:
                event.set()
            else:
                event.clear()
