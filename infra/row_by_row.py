"""Changes many rows in one statement, and finds out which one is at fault where that fails.

A row may refuse every change: a CHECK, a trigger, a value that cannot be read. Such a row fails the
statement for all, and comes first in each round until somebody mends it. So what fails is halved
until the row at fault stands alone. It is told, and left; the others are changed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from infra.news import News
from infra.retry import is_of_a_row

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from uuid import UUID

    from sqlalchemy import Row

    from infra.database import Database
    from schema.statements.batch import Batch
    from schema.statements.bound import Bound

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# Whoever is at fault needs somebody who looks at it.
_SHUNNED_SECONDS = 60.0
_MOST_SHUNNED = 1_000


class Target(NamedTuple):
    """A row that is to be changed: an entry, or a job by itself."""

    id: int | UUID
    job_id: UUID


class Changed(NamedTuple):
    """What the statements gave, and the ids of rows that were not tried or cannot be changed."""

    rows: Sequence[Row[Any]]
    left: Collection[int | UUID]


class RowByRow:
    """Changes what can be changed; ``doing`` says in the logs what that is.

    Where nothing is at fault it runs the one statement and nothing else.
    """

    def __init__(
        self, database: Database, *, doing: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._doing = doing
        self._clock = clock
        self._news = News()
        # Jobs of which a row cannot be changed, and until when they are passed over.
        self._shunned: dict[UUID, float] = {}

    async def fetch(self, batch: Batch) -> Sequence[Row[Any]]:
        """Change whatever the batch finds, and return its rows.

        A job of which a row is at fault is passed over for a minute: it would fail each round.
        """
        try:
            rows = await self._database.fetch(batch.without(self.shunned()))
        except Exception as error:
            if not is_of_a_row(error):
                raise
        else:
            if not self._shunned:
                self._news = News()
            return rows
        found = await self._database.fetch(batch.without(self.shunned()).found())
        targets = [Target(row.id, row.job_id) for row in found]
        return (await self._halve(targets, batch.these, shuns=True)).rows

    async def fetch_these(
        self, targets: Sequence[Target], these: Callable[[Sequence[Any]], Bound]
    ) -> Changed:
        """Change the rows that the caller knows, by their ids; nothing is passed over next time."""
        return await self._halve(targets, these, shuns=False)

    def shunned(self) -> Collection[UUID]:
        """Give the jobs that are passed over now."""
        if self._shunned:
            now = self._clock()
            self._shunned = {job: until for job, until in self._shunned.items() if until > now}
        return self._shunned.keys()

    def shun(self, *jobs: UUID) -> None:
        """Pass over jobs for a minute."""
        for job_id in jobs:
            self._shunned.pop(job_id, None)
            self._shunned[job_id] = self._clock() + _SHUNNED_SECONDS
        while len(self._shunned) > _MOST_SHUNNED:
            del self._shunned[next(iter(self._shunned))]

    async def _halve(
        self,
        targets: Sequence[Target],
        these: Callable[[Sequence[Any]], Bound],
        *,
        shuns: bool,
    ) -> Changed:
        """Run the statement over all, and over halves of what fails.

        Raises what is no row's fault, unless something was changed before: that must be carried.
        """
        rows: list[Row[Any]] = []
        left: list[int | UUID] = []
        parts = [list(targets)] if targets else []
        while parts:
            part = parts.pop()
            try:
                rows += await self._database.fetch(these([target.id for target in part]))
            except Exception as error:
                if not is_of_a_row(error):
                    if not rows:
                        raise
                    left += (target.id for each in (part, *parts) for target in each)
                    break
                if len(part) > 1:
                    half = len(part) // 2
                    parts += part[half:], part[:half]
                    continue
                left.append(part[0].id)
                self._tell(part[0], error)
                if shuns:
                    self.shun(part[0].job_id)
                    # What else there is of the job may be at fault, too, by the thousand.
                    parts = _without(part[0].job_id, parts)
            else:
                for target in part:
                    self._news.is_well(target.id)
        return Changed(rows, left)

    def _tell(self, target: Target, error: Exception) -> None:
        if self._news.is_news(target.id, error):
            log.error(
                "row.passed_over",
                doing=self._doing,
                entry=target.id if isinstance(target.id, int) else None,
                job_id=str(target.job_id),
                remedy="this row cannot be changed; mend it, it is tried again by itself",
                exc_info=error,
            )


def _without(job_id: UUID, parts: Sequence[Sequence[Target]]) -> list[list[Target]]:
    kept = ([target for target in part if target.job_id != job_id] for part in parts)
    return [part for part in kept if part]
