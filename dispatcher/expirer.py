"""Ends jobs whose time has passed; the sweeper then ends what they left undone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from infra.row_by_row import RowByRow
from schema.statements.control import expire_jobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from infra.database import Database

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Expirer:
    """An input of a job past its time is not started, whether or not this has run yet."""

    name = "expirer"

    def __init__(self, database: Database, *, most: int, tell: Callable[[], None]) -> None:
        self._rows = RowByRow(database, doing="expire")
        self._most = most
        self._tell = tell

    async def once(self) -> int:
        """End up to a batch of jobs; return how many."""
        rows = await self._rows.fetch(expire_jobs(most=self._most))
        for row in rows:
            log.warning("expirer.expired", job=row.key, correlation_id=row.correlation_id)
        if rows:
            self._tell()
        return len(rows)
