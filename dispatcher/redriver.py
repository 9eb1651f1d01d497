"""Works off redrives that were asked for, a bounded batch in each transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from infra import redrive
from schema.statements.redrive import take_redrive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy.ext.asyncio import AsyncConnection

    from infra.database import Database
    from schema.chunking import ChunkBounds

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_FIRST = UUID(int=0)


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
        self._database = database
        self._chunks = chunks
        self._wake = wake
        self._most = most
        self._after = _FIRST

    async def once(self) -> int:
        """Do one batch of each open redrive; return how many of them came further.

        After one that failed, the next round goes on with those behind it.
        """
        moved = 0
        while (progress := await self._database.run(self._next)) is not None:
            moved += progress.moved
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
        self._after = _FIRST
        return moved

    async def _next(self, connection: AsyncConnection) -> redrive.Progress | None:
        row = (await connection.execute(take_redrive(after=self._after))).one_or_none()
        if row is None:
            return None
        self._after = row.id
        return await redrive.advance(connection, row, chunks=self._chunks, most=self._most)
