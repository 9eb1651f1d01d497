"""Gives back what was claimed and has not run, all that waits of a job in one commit."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

import structlog

from infra.retry import is_lock_timeout, jittered, sleep_unless
from schema.errors import HaulageError
from schema.statements.claim import release_entries

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from infra.database import Database
    from infra.queue.protocol import Claim

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_BASE_SECONDS = 0.1
_CAP_SECONDS = 2.0
# While it waits, the leases of the entries cannot be extended: as with what is put aside.
_SHARE_OF_PATIENCE = 0.25
_LEAST_PATIENCE_SECONDS = 0.005
_REMEDY = "their leases end by themselves"

# By the id and the epoch of their entries: who waits for the release.
Claims = dict[tuple[int, int], asyncio.Future[bool]]


class Releaser:
    """Releases claims; where somebody holds a row of their job, it tries until the drain is over.

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
        self._jobs: defaultdict[UUID, Claims] = defaultdict(dict)
        self._wanted = asyncio.Event()

    async def release(self, claim: Claim) -> bool:
        """Give a claim back; false if its lease was lost, or is left to end by itself."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._jobs[claim.job_id][claim.entry_id, claim.epoch] = answer
        self._wanted.set()
        return await answer

    async def run(self) -> None:
        """Release what is handed over until cancelled."""
        pause = sleep_unless(self._wanted, self._given_up)
        rounds_in_vain = 0
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            rounds_in_vain = 0 if await self._round() else rounds_in_vain + 1
            if self._jobs:
                await pause(
                    jittered(rounds_in_vain, base_seconds=_BASE_SECONDS, cap_seconds=_CAP_SECONDS)
                )
                self._wanted.set()

    async def _round(self) -> bool:
        """Try the claims of each job once; say whether any of them could be judged."""
        lock_seconds = self._lock_seconds
        is_progress = False
        for job_id in list(self._jobs):
            claims = self._jobs.pop(job_id)
            is_last_try = self._given_up.is_set()
            try:
                released = await self._release(claims, lock_seconds)
            except Exception as error:  # noqa: BLE001 - what cannot be given back ends no other's work
                if is_lock_timeout(error) and not is_last_try:
                    self._jobs[job_id].update(claims)
                    lock_seconds = max(_LEAST_PATIENCE_SECONDS, lock_seconds / 2)
                    continue
                _tell(error, entries=len(claims))
                released = set()
            is_progress = True
            for key, answer in claims.items():
                if not answer.done():  # who waited may have been cancelled
                    answer.set_result(key in released)
        return is_progress

    async def _release(self, claims: Claims, lock_seconds: float) -> set[tuple[int, int]]:
        rows = await self._database.fetch(
            release_entries(
                [entry_id for entry_id, _ in claims],
                [epoch for _, epoch in claims],
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
