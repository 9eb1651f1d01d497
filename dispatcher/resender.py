"""Sends again what never arrived: a queue may be purged, or keep a message past its retention."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import structlog

from infra.row_by_row import RowByRow
from schema.statements.relay import requeue_overdue

if TYPE_CHECKING:
    from collections.abc import Callable

    from infra.database import Database

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Resender:
    """Makes entries due again that were sent long ago and claimed by nobody.

    Each one after twice as long as the time before, up to a bound: it may not be the message that
    is missing, but somebody who consumes the kind.
    """

    name = "resender"

    def __init__(
        self, database: Database, *, after_seconds: float, most: int, wake: Callable[[], None]
    ) -> None:
        self._rows = RowByRow(database, doing="send again")
        self._after_seconds = after_seconds
        self._most = most
        self._wake = wake

    async def once(self) -> int:
        """Requeue up to a batch of overdue entries."""
        rows = await self._rows.fetch(requeue_overdue(self._after_seconds, most=self._most))
        # A purged queue loses thousands at once: one line for each job.
        jobs = Counter((row.job_key, row.correlation_id) for row in rows)
        for (job, correlation_id), entries in jobs.items():
            log.warning(
                "resender.requeued",
                job=job,
                entries=entries,
                correlation_id=correlation_id,
                sent_more_than_seconds_ago=self._after_seconds,
            )
        if rows:
            self._wake()
        return len(rows)
