"""``/parked``: what could not be delivered, for those who run the server."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from uuid import UUID

from api.answers import json_answer
from api.cursors import CursorOf
from api.letters import check_choice
from api.lifecycle_models import Nothing, ParkedRequest
from api.lifecycle_views import entry_document, message_document
from api.paths import no_job, row_id
from api.problems import BadFields, Problem, conflict, not_found
from api.queries import Query, refuse_parameters
from schema.statements.parked import (
    EntryFilter,
    count_parked_entries,
    dismiss_parked_message,
    list_parked_entries,
    list_parked_messages,
    reprocess_parked_entries,
    reprocess_parked_entry,
    reprocess_parked_message,
)
from schema.statements.read import locate_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Row
    from starlette.requests import Request
    from starlette.responses import Response

    from api.exchange import Exchange
    from api.fields import FieldsReader
    from infra.database import Database
    from infra.wakeup import Notifier

_OPEN_MESSAGES, _ENTRIES, _RESOLVED_MESSAGES, _PARTS = range(4)
# What one request makes due again: each batch is a transaction of a moment.
_BATCH, _BATCHES = 1_000, 10
_MOST_COUNTED = 1_000_000
_NO_MESSAGE = "there is no such parked message"
_NO_ENTRY = "there is no such parked entry"


class Parked:
    """The handlers of parked messages and entries; they are for admin keys."""

    def __init__(self, database: Database, notifier: Notifier, fields: FieldsReader) -> None:
        self._database = database
        self._notifier = notifier
        self._fields = fields

    async def list_all(self, request: Request, exchange: Exchange) -> Response:
        """List open messages, then entries, then resolved messages, each by id."""
        _for_admins(exchange)
        query = Query(request.query_params)
        page_size, after = query.page_size(), query.after()
        query.finish()
        cursor = CursorOf("parked", ())
        part, last = (0, 0) if after is None else cursor.row(after, parts=_PARTS)
        items: list[dict[str, Any]] = []
        while part < _PARTS:
            room = page_size - len(items)
            rows = await self._rows(part, last, room + 1)
            looked = rows[:room]
            items += [_document(part, row) for row in looked if _belongs(part, row)]
            if len(rows) > room:
                last = looked[-1].id if looked else last
                return json_answer({"items": items, "next": cursor.after_row(part, last)})
            part, last = part + 1, 0
        return json_answer({"items": items, "next": None})

    async def reprocess_message(self, request: Request, exchange: Exchange) -> Response:
        """Make the entry of an open message due again."""
        return await self._resolve(request, exchange, dismissing=False)

    async def dismiss_message(self, request: Request, exchange: Exchange) -> Response:
        """Close an open message that needs nothing."""
        return await self._resolve(request, exchange, dismissing=True)

    async def reprocess_entry(self, request: Request, exchange: Exchange) -> Response:
        """Make a parked entry due again."""
        _for_admins(exchange)
        refuse_parameters(request)
        identity = row_id(request, _NO_ENTRY)
        await self._fields.read(request, Nothing)
        for row in await self._database.fetch(reprocess_parked_entry(identity)):
            self._notifier.notify()
            return json_answer({"id": row.id, "state": row.state}, HTTPStatus.ACCEPTED)
        raise not_found(_NO_ENTRY)

    async def reprocess_entries(self, request: Request, exchange: Exchange) -> Response:
        """Make parked entries that match a filter due again, a bounded number in one request."""
        _for_admins(exchange)
        refuse_parameters(request)
        asked = await self._fields.read(request, ParkedRequest)
        exchange.job = asked.jobId
        which = await self._filter(asked)
        if asked.dryRun:
            return json_answer({"dryRun": True, "matched": await self._count(which)})
        released, after = 0, 0
        for _ in range(_BATCHES):
            statement = reprocess_parked_entries(which, after=after, most=_BATCH)
            (row,) = await self._database.fetch(statement)
            released += row.released
            if row.looked < _BATCH:
                break
            after = row.last
        if released:
            self._notifier.notify()
        document = {"released": released, "remaining": await self._count(which)}
        return json_answer(document, HTTPStatus.ACCEPTED)

    async def _filter(self, asked: ParkedRequest) -> EntryFilter:
        bad = BadFields()
        check_choice(asked, bad)
        if bad.count:
            raise bad.problem()
        job_id = None
        if asked.jobId is not None:
            for row in await self._database.fetch(locate_job(asked.jobId, owner_id=None)):
                job_id = UUID(bytes=row.id.bytes)
            if job_id is None:
                raise no_job()
        return EntryFilter(asked.entryType, asked.kind, job_id, asked.reason)

    async def _count(self, which: EntryFilter) -> int:
        (row,) = await self._database.fetch(count_parked_entries(which, most=_MOST_COUNTED))
        return int(row.many)

    async def _resolve(self, request: Request, exchange: Exchange, *, dismissing: bool) -> Response:
        _for_admins(exchange)
        refuse_parameters(request)
        identity = row_id(request, _NO_MESSAGE)
        await self._fields.read(request, Nothing)
        if dismissing:
            for row in await self._database.fetch(dismiss_parked_message(identity)):
                return json_answer({"id": row.id, "resolution": "dismissed"})
        else:
            for row in await self._database.fetch(reprocess_parked_message(identity)):
                self._notifier.notify()
                document = {"id": row.id, "resolution": row.resolution}
                return json_answer(document, HTTPStatus.ACCEPTED)
        raise await self._why_not(identity)

    async def _why_not(self, identity: int) -> Problem:
        statement = list_parked_messages(after=identity - 1, only_open=False, most=1)
        for row in await self._database.fetch(statement):
            if row.id == identity and row.resolved_at is not None:
                return conflict(f"the message is resolved: {row.resolution}")
            if row.id == identity:
                return conflict("the message names no entry: it can only be dismissed")
        return not_found(_NO_MESSAGE)

    async def _rows(self, part: int, after: int, most: int) -> Sequence[Row[Any]]:
        if part == _ENTRIES:
            return await self._database.fetch(list_parked_entries(after=after, most=most))
        only_open = part == _OPEN_MESSAGES
        return await self._database.fetch(
            list_parked_messages(after=after, only_open=only_open, most=most)
        )


def _for_admins(exchange: Exchange) -> None:
    if not exchange.known_caller.is_admin:
        raise Problem(HTTPStatus.FORBIDDEN, "forbidden", "this address is for admin keys")


def _belongs(part: int, row: Row[Any]) -> bool:
    """Say whether a row is of this part: the last one passes over the messages of the first."""
    return part != _RESOLVED_MESSAGES or row.resolved_at is not None


def _document(part: int, row: Row[Any]) -> dict[str, Any]:
    return entry_document(row) if part == _ENTRIES else message_document(row)
