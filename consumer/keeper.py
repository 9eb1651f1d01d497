"""Keeps what waits for a row in other hands: each job's is tried apart, and holds up no other's."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from infra.patience import shortened
from infra.retry import jittered, sleep_unless
from infra.telemetry.logs import traced
from schema.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from infra.queue.protocol import Claim

Item = TypeVar("Item")

_BASE_SECONDS = 0.1
_CAP_SECONDS = 2.0
# An attempt holds the job's entries while it waits, and their leases cannot be extended meanwhile:
# it waits for a fraction of what a first one may, and of that for less with each further job.
_SHARE_OF_PATIENCE = 0.25
# A job costs what was in hand of it when it was put aside. Where so many are in other hands, it is
# everybody's trouble, and nothing more is claimed.
MOST_JOBS = 100
HELD_REMEDY = "end the session that holds a row of it: its own, of an entry, of an input, of a file"


@dataclass(slots=True)
class _Job(Generic[Item]):
    claim: Claim
    # How many are tried together: fewer where that took too long, or was in vain.
    most: int
    waiting: list[Item] = field(default_factory=list)
    was_tried: bool = False


class Keeper(Generic[Item]):
    """Tries what waits of each job at once, then ever more rarely, and once more at the end.

    ``attempt`` gets up to ``most`` of what waits of a job, and a patience in seconds. It gives
    back what somebody holds a row of, and raises ``Unavailable`` while Postgres is away. ``held``
    are the jobs that are put aside, and since when: ``tell_held`` is called once for each, and
    ``tell_free`` with the seconds that it took. Once ``given_up`` is set, what is tried in vain
    goes to ``lose``.
    """

    def __init__(
        self,
        attempt: Callable[[Sequence[Item], float], Awaitable[Sequence[Item]]],
        lose: Callable[[Sequence[Item]], None],
        *,
        tell_held: Callable[[Claim], None],
        tell_free: Callable[[Claim, float], None] = lambda _claim, _seconds: None,
        most: int,
        lock_seconds: float,
        given_up: asyncio.Event,
    ) -> None:
        self._attempt = attempt
        self._lose = lose
        self._tell_held = tell_held
        self._tell_free = tell_free
        self._most = most
        self._lock_seconds = lock_seconds * _SHARE_OF_PATIENCE
        self._given_up = given_up
        self._jobs: dict[UUID, _Job[Item]] = {}
        self._news = asyncio.Event()
        self.held: dict[UUID, float] = {}
        self.room = asyncio.Event()
        self.room.set()

    def add(self, claim: Claim, items: Sequence[Item]) -> None:
        """Hand over what is to be tried at once, or with what was tried of its job in vain."""
        job = self._jobs.get(claim.job_id)
        if job is None:
            job = self._jobs[claim.job_id] = _Job(claim, self._most)
            self._news.set()
        job.waiting.extend(items)

    def put_aside(self, claim: Claim, items: Sequence[Item]) -> None:
        """Hand over what somebody holds a row of, and with it whatever is to come of its job."""
        self.add(claim, items)
        self._hold(claim)

    def takes(self, claim: Claim, items: Sequence[Item]) -> bool:
        """Take what came of a job that is put aside; false if it is not."""
        if claim.job_id not in self.held:
            return False
        self.add(claim, items)
        return True

    async def run(self) -> None:
        """Try what is handed over until cancelled."""
        pause = sleep_unless(self._news, self._given_up)
        rounds_in_vain = 0
        again_at = 0.0
        while True:
            if self._jobs:
                await pause(max(0.0, again_at - time.monotonic()))
            else:
                await self._news.wait()
            self._news.clear()
            # What comes meanwhile is tried at once, and what waits no sooner for its sake.
            is_time = time.monotonic() >= again_at or self._given_up.is_set()
            is_progress = await self._round(with_tried=is_time)
            if is_time:
                rounds_in_vain = 0 if is_progress else rounds_in_vain + 1
                again_at = time.monotonic() + jittered(
                    rounds_in_vain, base_seconds=_BASE_SECONDS, cap_seconds=_CAP_SECONDS
                )

    async def _round(self, *, with_tried: bool) -> bool:
        """Try each job once; say whether nothing is left of any."""
        lock_seconds = self._lock_seconds
        is_progress = False
        for job in list(self._jobs.values()):
            if job.was_tried and not with_tried:
                continue
            if await self._try(job, lock_seconds):
                is_progress = True
            else:
                lock_seconds = shortened(lock_seconds)
        return is_progress

    async def _try(self, job: _Job[Item], lock_seconds: float) -> bool:
        """Try what waits of a job, commit by commit; say whether nothing of it is left."""
        job.was_tried = True
        while job.waiting:
            batch = job.waiting[: job.most]
            is_last_try = self._given_up.is_set()
            try:
                left = await self._attempt(batch, lock_seconds)
            except Unavailable:
                left = batch
            else:
                if left:
                    self._hold(job.claim)
            job.waiting[: len(batch)] = left
            job.most = max(1, job.most // 2) if left else min(2 * job.most, self._most)
            if left and is_last_try:
                self._forget(job)
                self._lose(job.waiting)
            if left:
                return False
        since = self._forget(job)
        if since is not None and not self._given_up.is_set():
            # What was tried for the last time may have been lost as well.
            with traced(job.claim.trace, job=job.claim.job_key):
                self._tell_free(job.claim, time.monotonic() - since)
        return True

    def _hold(self, claim: Claim) -> None:
        if claim.job_id in self.held:
            return
        self.held[claim.job_id] = time.monotonic()
        if len(self.held) >= MOST_JOBS:
            self.room.clear()
        with traced(claim.trace, job=claim.job_key, entry=claim.entry_id):
            self._tell_held(claim)

    def _forget(self, job: _Job[Item]) -> float | None:
        """Forget a job; give since when somebody held a row of it, if anybody did."""
        del self._jobs[job.claim.job_id]
        since = self.held.pop(job.claim.job_id, None)
        if len(self.held) < MOST_JOBS:
            self.room.set()
        return since
