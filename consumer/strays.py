"""Claims whose answer never came: found in Postgres, and given back before their leases end."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from infra.queue.protocol import Claim
from infra.telemetry.logs import traced
from schema.errors import HaulageError
from schema.statements.claim import claimed_by

if TYPE_CHECKING:
    from consumer.lease import Leases
    from consumer.releaser import Releaser
    from infra.database import Database
    from infra.queue.claiming import Claiming

    Key = tuple[int, int]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_LOOKS_IN_A_LEASE = 10


class Strays:
    """Looks for claims in this worker's name that are not in its hands, after a claim has failed.

    Their inputs would each be charged an attempt, though nothing ran and the worker lives. Postgres
    may still commit what nobody waits for any more, so it looks for as long as such a claim lasts.
    """

    def __init__(
        self,
        database: Database,
        claiming: Claiming,
        leases: Leases,
        releaser: Releaser,
        *,
        worker: str,
        lease_seconds: float,
    ) -> None:
        self._database = database
        self._claiming = claiming
        self._leases = leases
        self._releaser = releaser
        self._worker = worker
        self._lease_seconds = lease_seconds
        self._returning: dict[Key, asyncio.Task[None]] = {}
        self._is_watching = False
        self._is_told = False

    async def run(self) -> None:
        """Look after each claim that has failed, for as long as it may come to light."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._claiming.failed.wait()
                self._is_watching = True
                await self._watch(group)
                self._is_watching = False

    async def last(self) -> None:
        """Look once more when nothing is claimed any more; return when all is given back."""
        if self._is_watching or self._claiming.failed.is_set():
            async with asyncio.TaskGroup() as group:
                await self._look_once(group)
                await asyncio.gather(*self._returning.values())

    async def _watch(self, group: asyncio.TaskGroup) -> None:
        until = 0.0
        while self._claiming.failed.is_set() or time.monotonic() < until:
            failed = self._claiming.failed.is_set()
            self._claiming.failed.clear()
            await self._look_once(group)
            if failed or self._is_told:
                # While Postgres is away, what is on its way there may still be carried out.
                until = time.monotonic() + self._lease_seconds
            await asyncio.sleep(self._lease_seconds / _LOOKS_IN_A_LEASE)

    async def _look_once(self, group: asyncio.TaskGroup) -> None:
        for claim in await self._find():
            returning = group.create_task(self._return(claim), name=f"stray {claim.entry_id}")
            self._returning[claim.entry_id, claim.epoch] = returning

    async def _find(self) -> list[Claim]:
        """Give the claims that are strays by all that is known; none while Postgres is away."""
        try:
            seen = await self._look()
            if seen:
                # What is on its way will be in hand by then, if that was all.
                await self._claiming.calls_end()
                again = await self._look()
                seen = {key: claim for key, claim in again.items() if key in seen}
        except Exception as error:  # noqa: BLE001 - what is not found ends no other's work
            if not self._is_told:
                _tell(error)
            self._is_told = True
            return []
        self._is_told = False
        return list(seen.values())

    async def _look(self) -> dict[Key, Claim]:
        rows = await self._database.answered_within(
            self._lease_seconds / _LOOKS_IN_A_LEASE,
            self._database.fetch(claimed_by(self._worker)),
        )
        return {
            (row.entry_id, row.epoch): Claim.from_row(row)
            for row in rows
            if (row.entry_id, row.epoch) not in self._returning
            and not self._leases.knows(row.entry_id, row.epoch)
        }

    async def _return(self, claim: Claim) -> None:
        try:
            # Its lease is kept alive while somebody holds a row of its job.
            with self._leases.hold(claim) as lease:
                lease.is_given_back = True
                lease.is_over = await self._releaser.release(claim)
        finally:
            self._returning.pop((claim.entry_id, claim.epoch), None)
        if lease.is_over:
            with traced(claim.trace, job=claim.job_key, entry=claim.entry_id):
                log.warning("entry.recovered", because="the answer to its claim never came")


def _tell(error: Exception) -> None:
    if isinstance(error, HaulageError):
        log.warning("entry.not_recovered", error=str(error))
    else:
        log.error("entry.not_recovered", exc_info=error)
