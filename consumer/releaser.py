"""Gives back what was claimed and has not run, all that waits of a job in one commit."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from consumer.aside import HELD_REMEDY, MOST_JOBS
from infra.patience import shortened
from infra.retry import is_lock_timeout, jittered, sleep_unless
from infra.telemetry.logs import traced
from schema.errors import HaulageError, Unavailable
from schema.statements.claim import release_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from infra.database import Database
    from infra.queue.protocol import Claim

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_BASE_SECONDS = 0.1
_CAP_SECONDS = 2.0
# While it waits, the leases of the entries cannot be extended: as with what is put aside.
_SHARE_OF_PATIENCE = 0.25
_REMEDY = "their leases end by themselves"


class _Waiting(NamedTuple):
    """A claim to be given back, and who waits to hear whether it was."""

    claim: Claim
    answer: asyncio.Future[bool]

    @property
    def key(self) -> tuple[int, int]:
        return self.claim.entry_id, self.claim.epoch


class Releaser:
    """Releases claims; while Postgres is away or somebody holds a row, until the drain is over.

    However many claims wait, one connection is used for them.
    """

    def __init__(
        self,
        database: Database,
        *,
        lock_seconds: float,
        given_up: asyncio.Event,
        wake: Callable[[], None],
    ) -> None:
        self._database = database
        self._lock_seconds = lock_seconds * _SHARE_OF_PATIENCE
        self._given_up = given_up
        self._wake = wake
        self._jobs: defaultdict[UUID, list[_Waiting]] = defaultdict(list)
        self._wanted = asyncio.Event()
        self._held: dict[UUID, None] = {}
        self._room = asyncio.Event()
        self._room.set()

    @property
    def shunned(self) -> dict[UUID, Any]:
        """Give the jobs of which somebody holds a row: what is claimed could not be given back."""
        return self._held

    async def room(self) -> None:
        """Wait until few enough jobs are in other hands."""
        await self._room.wait()

    async def release(self, claim: Claim) -> bool:
        """Give a claim back; false if its lease was lost, or is left to end by itself."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._jobs[claim.job_id].append(_Waiting(claim, answer))
        self._wanted.set()
        return await answer

    async def run(self) -> None:
        """Release what is handed over until cancelled."""
        pause = sleep_unless(self._wanted, self._given_up)
        rounds_in_vain = 0
        again_at = 0.0
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            # What comes meanwhile is tried at once, and what is held no sooner for its sake.
            is_time = time.monotonic() >= again_at or self._given_up.is_set()
            is_progress = await self._round(with_held=is_time)
            if is_time:
                rounds_in_vain = 0 if is_progress else rounds_in_vain + 1
                again_at = time.monotonic() + jittered(
                    rounds_in_vain, base_seconds=_BASE_SECONDS, cap_seconds=_CAP_SECONDS
                )
            if self._jobs:
                await pause(max(0.0, again_at - time.monotonic()))
                self._wanted.set()

    async def _round(self, *, with_held: bool) -> bool:
        """Try the claims of each job once; say whether any of them could be judged."""
        lock_seconds = self._lock_seconds
        is_progress = False
        for job_id in list(self._jobs):
            if job_id in self._held and not with_held:
                continue
            waiting = self._jobs.pop(job_id)
            is_last_try = self._given_up.is_set()
            try:
                released = await self._release(waiting, lock_seconds)
            except Exception as error:  # noqa: BLE001 - what cannot be given back ends no other's work
                if isinstance(error, Unavailable) and not is_last_try:
                    self._jobs[job_id] += waiting
                    if is_lock_timeout(error):
                        self._put_aside(waiting[0].claim)
                        lock_seconds = shortened(lock_seconds)
                    continue
                _tell(error, entries=len(waiting))
                released = set()
            self._held.pop(job_id, None)
            is_progress = True
            for each in waiting:
                if not each.answer.done():  # who waited may have been cancelled
                    each.answer.set_result(each.key in released)
        if len(self._held) < MOST_JOBS:
            self._room.set()
        else:
            self._room.clear()
        return is_progress

    def _put_aside(self, claim: Claim) -> None:
        if claim.job_id in self._held:
            return
        self._held[claim.job_id] = None
        with traced(claim.trace, job=claim.job_key, entry=claim.entry_id):
            log.warning("release.put_aside", kind=claim.kind, remedy=HELD_REMEDY)

    async def _release(
        self, waiting: Sequence[_Waiting], lock_seconds: float
    ) -> set[tuple[int, int]]:
        rows = await self._database.fetch(
            release_entries(
                [each.claim.entry_id for each in waiting],
                [each.claim.epoch for each in waiting],
                delay_seconds=0.0,
                lock_seconds=lock_seconds,
            )
        )
        if rows:
            self._wake()
        return {(row.id, row.epoch) for row in rows}


def _tell(error: Exception, *, entries: int) -> None:
    if isinstance(error, HaulageError):
        log.warning("entry.not_released", entries=entries, error=str(error), remedy=_REMEDY)
    else:
        log.error("entry.not_released", entries=entries, remedy=_REMEDY, exc_info=error)
