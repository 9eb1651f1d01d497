"""Gives back what was claimed and has not run, all that waits of a job in one commit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import structlog

from consumer.keeper import HELD_REMEDY, Keeper
from infra.retry import is_lock_timeout, is_of_a_row
from schema.errors import HaulageError, Unavailable
from schema.statements.claim import release_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from uuid import UUID

    from infra.database import Database
    from infra.queue.protocol import Claim

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

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
        most: int,
        lock_seconds: float,
        commit_seconds: float,
        given_up: asyncio.Event,
        wake: Callable[[], None],
    ) -> None:
        self._database = database
        self._wake = wake
        self._commit_seconds = commit_seconds
        self._keeper: Keeper[_Waiting] = Keeper(
            self._release,
            _lose,
            tell_held=_tell_held,
            most=most,
            lock_seconds=lock_seconds,
            given_up=given_up,
        )

    @property
    def shunned(self) -> dict[UUID, float]:
        """Give the jobs of which somebody holds a row: what is claimed could not be given back."""
        return self._keeper.held

    async def room(self) -> None:
        """Wait until few enough jobs are in other hands."""
        await self._keeper.room.wait()

    async def release(self, claim: Claim) -> bool:
        """Give a claim back; false if its lease was lost, or is left to end by itself."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._keeper.add(claim, [_Waiting(claim, answer)])
        return await answer

    async def run(self) -> None:
        """Release what is handed over until cancelled."""
        await self._keeper.run()

    async def _release(
        self, waiting: Sequence[_Waiting], lock_seconds: float
    ) -> Sequence[_Waiting]:
        try:
            releasing = release_entries(
                [each.claim.entry_id for each in waiting],
                [each.claim.epoch for each in waiting],
                delay_seconds=0.0,
                lock_seconds=lock_seconds,
            )
            rows = await self._database.answered_within(
                self._commit_seconds, self._database.fetch(releasing)
            )
        except Unavailable as error:
            if is_lock_timeout(error):
                return waiting
            raise
        except Exception as error:  # noqa: BLE001 - what cannot be given back ends no other's work
            if len(waiting) > 1 and is_of_a_row(error):
                return [
                    left for each in waiting for left in await self._release([each], lock_seconds)
                ]
            _tell(error, entries=len(waiting))
            rows = ()
        if rows:
            self._wake()
        _answer(waiting, {(row.id, row.epoch) for row in rows})
        return ()


def _answer(waiting: Sequence[_Waiting], released: Collection[tuple[int, int]]) -> None:
    for each in waiting:
        if not each.answer.done():  # who waited may have been cancelled
            each.answer.set_result(each.key in released)


def _lose(waiting: Sequence[_Waiting]) -> None:
    log.warning(
        "entry.not_released",
        entries=len(waiting),
        error="the drain was over before they could be",
        remedy=_REMEDY,
    )
    _answer(waiting, ())


def _tell_held(claim: Claim) -> None:
    log.warning("release.put_aside", kind=claim.kind, remedy=HELD_REMEDY)


def _tell(error: Exception, *, entries: int) -> None:
    if isinstance(error, HaulageError):
        log.warning("entry.not_released", entries=entries, error=str(error), remedy=_REMEDY)
    else:
        log.error("entry.not_released", entries=entries, remedy=_REMEDY, exc_info=error)
