"""Lets in what has become due, before those who claim come to it.

A claim lets in some itself, in the order in which they were due. Of a million scheduled entries
of one owner the last would come to it late, and so would another owner's retry behind them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.row_by_row import RowByRow
from schema.statements.relay import promote_due

if TYPE_CHECKING:
    from collections.abc import Callable

    from infra.database import Database

_ENTRIES = 5_000


class Promoter:
    """Makes deferred entries ready that are due."""

    name = "promoter"

    def __init__(self, database: Database, *, wake: Callable[[], None]) -> None:
        self._rows = RowByRow(database, doing="promote")
        self._wake = wake

    async def once(self) -> int:
        """Promote a batch."""
        promoted = len(await self._rows.fetch(promote_due(most=_ENTRIES)))
        if promoted:
            self._wake()
        return promoted
