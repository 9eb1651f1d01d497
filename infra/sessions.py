"""Sessions for statements that commit by themselves, at hand beside SQLAlchemy's pool."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sqlalchemy import exc as sa_exc
from sqlalchemy.pool import QueuePool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.pool import PoolProxiedConnection


class Sessions:
    """Hands the same few sessions from statement to statement; units get theirs from the pool.

    To take one out of the pool and put it back costs as much as to send a statement. One at hand is
    the pool's still, and counts as taken: so none is kept at hand while somebody waits at the pool.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._at_hand: list[PoolProxiedConnection] = []
        self._waiting = 0

    def are_used_up(self) -> bool:
        """Say whether who wants one now has to wait until another is done with theirs."""
        pool = self._engine.sync_engine.pool
        return (
            not self._at_hand and isinstance(pool, QueuePool) and pool.checkedout() >= pool.size()
        )

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Have who takes one from the pool inside the block count as waiting for it."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def take(self) -> PoolProxiedConnection:
        """Take one; what stands in the way is told by the driver's own error."""
        if self._waiting:
            # Who was woken takes theirs first, or statement after statement would come before them.
            await asyncio.sleep(0)
        if self._at_hand:
            return self._at_hand.pop()
        pool = self._engine.sync_engine.pool
        if isinstance(pool, QueuePool) and pool.checkedin():
            # Where nothing is waited for, a greenlet would cost several times what is done in it.
            with suppress(sa_exc.MissingGreenlet):  # what lies there is to be opened anew
                return pool.connect()
        try:
            with self.waiting():
                return await self._engine.raw_connection()
        except self._engine.dialect.loaded_dbapi.Error as error:
            raise (error.__cause__ or error) from None

    def give_back(self, session: PoolProxiedConnection) -> None:
        """Keep it at hand where it is of use, and nobody waits for one."""
        if session.is_valid and not self._waiting:
            self._at_hand.append(session)
        else:
            session.close()

    def make_room(self) -> None:
        """Put one that is at hand back into the pool, for a unit that is about to take one."""
        if self._at_hand:
            self._at_hand.pop().close()

    def put_back(self) -> None:
        """Put all that are at hand back into the pool."""
        while self._at_hand:
            self.make_room()
