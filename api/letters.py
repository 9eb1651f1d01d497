"""Which dead letters a request means: its filter, read from the query or from a body."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING
from uuid import UUID

from api.paths import JOB_KEY, no_job
from api.problems import BadFields, Problem
from api.queries import ERROR_CLASS, OWNER
from schema.statements.dead_letters import LetterFilter
from schema.statements.read import find_owner, locate_job

if TYPE_CHECKING:
    from api.auth import Caller
    from api.lifecycle_models import LetterRequest, ParkedRequest
    from api.queries import Query
    from infra.database import Database

_KIND = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_ERROR_CLASS = re.compile(ERROR_CLASS)
# Names no owner and no job: a filter that names what is not there matches nothing.
_NOBODY = UUID(int=0)


class LetterQuery:
    """The filter of a list, as its parameters say it."""

    def __init__(self, query: Query, caller: Caller) -> None:
        self._caller = caller
        self._owner = query.one("owner", OWNER, "the name of an owner")
        self._job = query.one("jobId", JOB_KEY, "the id of a job")
        self._kind = query.one("kind", _KIND, "the name of a kind")
        self._fingerprint = query.one("fingerprint", _FINGERPRINT, "a fingerprint")
        self._died_from, self._died_to = query.time("diedFrom"), query.time("diedTo")
        self._error_class = query.one("errorClass", _ERROR_CLASS, "the class of an error")
        if self._owner is not None and not caller.is_admin:
            raise _forbidden()

    def filters(self) -> tuple[object, ...]:
        """Give what a cursor of the list belongs to."""
        return (
            self._caller.scope, self._owner, self._job, self._kind, self._fingerprint,
            self._died_from, self._died_to, self._error_class,
        )  # fmt: skip

    async def resolve(self, database: Database) -> LetterFilter:
        """Look up what is named, within what the caller may see."""
        return LetterFilter(
            owner_id=await _owner_id(database, self._caller, self._owner),
            job_id=await _job_id(database, self._caller, self._job),
            kind=self._kind,
            fingerprint=self._fingerprint,
            died_from=self._died_from,
            died_to=self._died_to,
            error_class=self._error_class,
        )


def check_choice(asked: LetterRequest | ParkedRequest, bad: BadFields) -> None:
    """Note it where a request says nothing of what it means, or says too much."""
    given = [name for name in asked.FILTERS if getattr(asked, name) is not None]
    if not given and not asked.all:
        bad.add("", f"give one of {', '.join(asked.FILTERS)}, or all: true")
    if given and asked.all:
        bad.add("/all", f"excludes the filters, and {given[0]} is given")


async def resolve_request(
    asked: LetterRequest, *, caller: Caller, database: Database
) -> LetterFilter:
    """Give the filter of a body; what it names must be there, and it must say something."""
    if asked.owner is not None and not caller.is_admin:
        raise _forbidden()
    bad = BadFields()
    check_choice(asked, bad)
    owner_id = await _owner_id(database, caller, asked.owner)
    if owner_id == _NOBODY:
        bad.add("/owner", "is no owner")
    if bad.count:
        raise bad.problem()
    job_id = await _job_id(database, caller, asked.jobId)
    if job_id == _NOBODY:
        raise no_job()
    return LetterFilter(
        owner_id=owner_id,
        kind=asked.kind,
        job_id=job_id,
        fingerprint=asked.fingerprint,
        died_from=asked.diedFrom,
        died_to=asked.diedTo,
        error_class=asked.errorClass,
    )


def _forbidden() -> Problem:
    return Problem(HTTPStatus.FORBIDDEN, "forbidden", "only an admin may name an owner")


async def _owner_id(database: Database, caller: Caller, name: str | None) -> UUID | None:
    if name is None:
        return caller.scope
    for row in await database.fetch(find_owner(name)):
        return UUID(bytes=row.id.bytes)
    return _NOBODY


async def _job_id(database: Database, caller: Caller, key: str | None) -> UUID | None:
    if key is None:
        return None
    for row in await database.fetch(locate_job(key, owner_id=caller.scope)):
        return UUID(bytes=row.id.bytes)
    return _NOBODY
