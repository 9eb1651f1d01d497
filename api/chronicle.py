"""Reads stories out of the database, page by page: of one job, or of all of a correlation id."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from api.next_step import idleness
from schema.statements.story import Part, Place, list_steps
from schema.statements.story_heads import find_head, list_heads

if TYPE_CHECKING:
    from sqlalchemy import Row

    from infra.database import Database

# Up to so many inputs are told one by one; those of larger jobs are summed up.
TOLD_ONE_BY_ONE = 100
# What a page looks at, at most: jobs, each of which costs a statement, and attempts that their
# inputs may have failed; an input counts as ten of these at least.
_JOBS_PER_PAGE = 10
_ATTEMPTS_PER_PAGE = 100_000
_ATTEMPTS_OF_INPUT = 10
_BEGINNING = Place(dt.datetime(1970, 1, 1, tzinfo=dt.UTC), 0, -1, 0)
BUCKETS = ("minute", "hour", "day")
_MINUTES_UP_TO_SECONDS = 2 * 3_600
_HOURS_UP_TO_SECONDS = 5 * 86_400


class Bookmark(NamedTuple):
    """Where a page ended: behind a step of a job, in the part that begins with ``first``.

    ``bucket`` is the one that the story began with, however old the job has become meanwhile.
    """

    requested_at: dt.datetime
    job_id: UUID
    place: Place
    first: int = 0
    bucket: str | None = None


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

    async def head(
        self, key: str, *, scope: UUID | None, ordinal: int | None = None
    ) -> Row[Any] | None:
        """Find the job that a story is to be about, or the job of that input."""
        statement = find_head(key, owner_id=scope, ordinal=ordinal)
        for row in await self._database.fetch(statement):
            return row
        return None

    async def of_job(
        self, head: Row[Any], *, ordinal: int | None, after: Bookmark, size: int
    ) -> Page:
        """Give a page of the story of a job, or of one of its inputs; of one part at most."""
        part = _part(head, ordinal, after.first)
        bucket = None if ordinal is not None else _bucket(head, after.bucket)
        rows = await self._database.fetch(
            list_steps(
                head.id,
                part,
                ordinal=ordinal,
                bucket=bucket,
                after=after.place,
                most=size + 1,
                idle=idleness(head.kind, head.kind_ran_at) if head.kind_is_idle else None,
            )
        )
        shown = [(head, row) for row in rows[:size]]
        here = Bookmark(head.requested_at, head.id, _BEGINNING, part.first, bucket)
        if len(rows) > size:
            return Page(shown, here._replace(place=_place(rows[size - 1])))
        return Page(shown, None if part.ends else here._replace(first=part.until))

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
        looked_at = 0
        for number, head in enumerate(heads):
            begin = after if head.id == after.job_id else START
            part = _part(head, None, begin.first)
            looked_at += (part.until - part.first) * _weight(head)
            is_full = len(steps) == size or (number > 0 and looked_at > _ATTEMPTS_PER_PAGE)
            if number == _JOBS_PER_PAGE or is_full:
                return Page(steps, Bookmark(head.requested_at, head.id, _BEGINNING))
            page = await self.of_job(head, ordinal=None, after=begin, size=size - len(steps))
            steps += page.steps
            if page.end is not None:
                return Page(steps, page.end)
        return Page(steps, None)


def _part(head: Row[Any], ordinal: int | None, first: int) -> Part:
    """Give what a page of the job may look at: it costs the same, however large the job is."""
    if ordinal is not None:
        return Part(ordinal, ordinal + 1, begins=True, ends=True)
    until = max(first, min(first + _ATTEMPTS_PER_PAGE // _weight(head), head.total))
    return Part(first, until, begins=first == 0, ends=until >= head.total)


def _weight(head: Row[Any]) -> int:
    return max(_ATTEMPTS_OF_INPUT, int(head.max_attempts))


def _bucket(head: Row[Any], begun_with: str | None) -> str | None:
    """Give the time over which inputs are summed up: few buckets, however long it took."""
    if head.total <= TOLD_ONE_BY_ONE or begun_with is not None:
        return begun_with
    if head.lasted_seconds <= _MINUTES_UP_TO_SECONDS:
        return "minute"
    return "hour" if head.lasted_seconds <= _HOURS_UP_TO_SECONDS else "day"


def _place(step: Row[Any]) -> Place:
    return Place(step.place_at, step.rank, step.place_ordinal, step.place_n)
