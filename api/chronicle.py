"""Reads stories out of the database, page by page: of one job, or of all of a correlation id."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from schema.statements.story import Place, find_head, list_heads, list_steps

if TYPE_CHECKING:
    from sqlalchemy import Row

    from infra.database import Database

# Up to so many inputs are told one by one; those of larger jobs are summed up.
TOLD_ONE_BY_ONE = 100
# A page looks at so many jobs: each costs a statement, whose time follows from the job's size.
_JOBS_PER_PAGE = 10
_BEGINNING = Place(dt.datetime(1970, 1, 1, tzinfo=dt.UTC), 0, -1, 0)
_MINUTES_UP_TO_SECONDS = 2 * 3_600
_HOURS_UP_TO_SECONDS = 5 * 86_400


class Bookmark(NamedTuple):
    """Where a page ended: behind a step of a job."""

    requested_at: dt.datetime
    job_id: UUID
    place: Place


START = Bookmark(dt.datetime(1970, 1, 1, tzinfo=dt.UTC), UUID(int=0), _BEGINNING)


@dataclass(frozen=True, slots=True)
class Page:
    """Steps in order, each with the head of its job, and where to go on; none: at the end."""

    steps: list[tuple[Row[Any], Row[Any]]]
    end: Bookmark | None


class Chronicle:
    """Tells what the database knows, to whom may see it; ``scope`` is an owner, none: all."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def head(self, key: str, *, scope: UUID | None) -> Row[Any] | None:
        """Find the job that a story is to be about."""
        for row in await self._database.fetch(find_head(key, owner_id=scope)):
            return row
        return None

    async def of_job(
        self, head: Row[Any], *, ordinal: int | None, after: Bookmark, size: int
    ) -> Page:
        """Give a page of the story of a job, or of one of its inputs."""
        statement = list_steps(
            head.id,
            ordinal=ordinal,
            bucket=None if ordinal is not None else _bucket(head),
            after=after.place,
            most=size + 1,
        )
        rows = await self._database.fetch(statement)
        shown = [(head, row) for row in rows[:size]]
        return Page(shown, _behind(head, rows[size - 1]) if len(rows) > size else None)

    async def of_correlation(
        self, correlation_id: str, *, scope: UUID | None, after: Bookmark, size: int
    ) -> Page | None:
        """Give a page of the stories of all its jobs, the oldest job first; none: no such job."""
        heads = await self._database.fetch(
            list_heads(
                correlation_id,
                owner_id=scope,
                from_time=after.requested_at,
                from_id=after.job_id,
                most=_JOBS_PER_PAGE + 1,
            )
        )
        if not heads and after == START:
            return None
        steps: list[tuple[Row[Any], Row[Any]]] = []
        for number, head in enumerate(heads):
            if number == _JOBS_PER_PAGE or len(steps) == size:
                return Page(steps, Bookmark(head.requested_at, head.id, _BEGINNING))
            begin = after if head.id == after.job_id else START
            page = await self.of_job(head, ordinal=None, after=begin, size=size - len(steps))
            steps += page.steps
            if page.end is not None:
                return Page(steps, page.end)
        return Page(steps, None)


def _bucket(head: Row[Any]) -> str | None:
    """Give the time over which inputs are summed up: few buckets, however long it took."""
    if head.total <= TOLD_ONE_BY_ONE:
        return None
    if head.lasted_seconds <= _MINUTES_UP_TO_SECONDS:
        return "minute"
    return "hour" if head.lasted_seconds <= _HOURS_UP_TO_SECONDS else "day"


def _behind(head: Row[Any], step: Row[Any]) -> Bookmark:
    place = Place(step.place_at, step.rank, step.place_ordinal, step.place_n)
    return Bookmark(head.requested_at, head.id, place)
