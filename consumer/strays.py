"""Claims whose answer never came: found in Postgres, and given back before their leases end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from infra.retry import jittered
from schema.errors import HaulageError
from schema.statements.claim import claimed_by, release_entries

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumer.lease import Leases
    from infra.database import Database

    Key = tuple[int, int]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_BASE_SECONDS = 0.2
_CAP_SECONDS = 2.0
# What was claimed is in hand after a third of a lease, or not at all.
_SHARE_OF_LEASE = 0.4


class Strays:
    """Looks for claims in this worker's name that are not in its hands, after a claim has failed.

    Their inputs would each be charged an attempt, though nothing ran and the worker lives.
    """

    def __init__(
        self,
        database: Database,
        leases: Leases,
        *,
        worker: str,
        lease_seconds: float,
        lock_seconds: float,
        wake: Callable[[], None],
    ) -> None:
        self._database = database
        self._leases = leases
        self._worker = worker
        self._wait_seconds = lease_seconds * _SHARE_OF_LEASE
        self._lock_seconds = lock_seconds
        self._wake = wake
        self._suspected = asyncio.Event()
        self._is_looking = False

    def suspect(self) -> None:
        """Note that a claim failed: it may have been committed all the same."""
        self._suspected.set()

    async def run(self) -> None:
        """Look after each suspicion, and again until Postgres answers, until cancelled."""
        failures = 0
        while True:
            await self._suspected.wait()
            self._suspected.clear()
            self._is_looking = True
            try:
                if seen := await self._look():
                    # Another claim may be on its way from Postgres into our hands.
                    await asyncio.sleep(self._wait_seconds)
                    await self._give_back(seen & await self._look())
            except Exception as error:  # noqa: BLE001 - what is not found ends no other's work
                failures += 1
                if failures == 1:
                    _tell(error)
                await asyncio.sleep(
                    jittered(failures, base_seconds=_BASE_SECONDS, cap_seconds=_CAP_SECONDS)
                )
                self._suspected.set()
            else:
                failures = 0
                self._is_looking = False

    async def last(self) -> None:
        """Give back what is still suspected, once nothing is claimed any more."""
        if self._is_looking or self._suspected.is_set():
            try:
                await self._give_back(await self._look())
            except Exception as error:  # noqa: BLE001 - their leases end by themselves
                _tell(error)

    async def _look(self) -> set[Key]:
        rows = await self._database.fetch(claimed_by(self._worker))
        return {(row.id, row.epoch) for row in rows if not self._leases.knows(row.id, row.epoch)}

    async def _give_back(self, strays: set[Key]) -> None:
        if not strays:
            return
        entries, epochs = zip(*sorted(strays), strict=True)
        rows = await self._database.fetch(
            release_entries(entries, epochs, delay_seconds=0.0, lock_seconds=self._lock_seconds)
        )
        if rows:
            self._wake()
            log.warning(
                "claims.recovered",
                entries=len(rows),
                because="the answer to their claim never came",
            )


def _tell(error: Exception) -> None:
    if isinstance(error, HaulageError):
        log.warning("claims.not_recovered", error=str(error))
    else:
        log.error("claims.not_recovered", exc_info=error)
