"""Works off redrives that were asked for, a bounded batch in each transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from dispatcher.bulkhead import Bulkhead
from infra import redrive
from schema.statements.redrive import take_redrive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy.ext.asyncio import AsyncConnection

    from infra.database import Database
    from schema.chunking import ChunkBounds

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_FIRST = UUID(int=0)
# However many are open, a round ends soon: whoever stops the process, or watches it, waits for it.
_MOST_AT_ONCE = 20


class Redriver:
    """Gives each open redrive a batch in turn; several instances take different ones."""

    name = "redriver"

    def __init__(
        self,
        database: Database,
        *,
        chunks: Mapping[str, ChunkBounds],
        wake: Callable[[], None],
        most: int = redrive.BATCH_INPUTS,
    ) -> None:
        self._bulkhead = Bulkhead(database)
        self._chunks = chunks
        self._wake = wake
        self._most = most
        self._after = _FIRST
        # How many came further since the first of them.
        self._moved = 0

    async def once(self) -> int:
        """Do one batch of each of some open redrives; 0 once all had their turn in vain."""
        self._bulkhead.begin()
        for _ in range(_MOST_AT_ONCE):
            progress = await self._next()
            if progress is None:
                moved, self._moved, self._after = self._moved, 0, _FIRST
                return moved
            self._moved += progress
        return _MOST_AT_ONCE

    async def _next(self) -> int | None:
        """Do a batch of the next redrive; say whether it came further, None: there is no next."""
        after = self._after
        progress: redrive.Progress | None = None

        async def unit(connection: AsyncConnection) -> redrive.Progress | None:
            row = (await connection.execute(take_redrive(after=after))).one_or_none()
            if row is None:
                return None
            # However this one ends, the others are behind it.
            part.key = self._after = row.id
            return await redrive.advance(connection, row, chunks=self._chunks, most=self._most)

        with self._bulkhead.compartment() as part:
            progress = await self._bulkhead.run(unit)
        if part.news is not None:
            log.error("redriver.failed", redrive=str(part.key), exc_info=part.news)
        if part.error is not None:
            return 0
        if progress is None:
            return None
        if progress.redriven:
            self._wake()
        if progress.finished:
            log.info(
                "redriver.finished",
                redrive=str(progress.redrive_id),
                matched=progress.matched,
                redriven=progress.redriven,
                stopped_reason=progress.stopped_reason,
            )
        return int(progress.moved)
