"""``GET /dlq`` and ``GET /dlq/groups``: what gave up, and what it has in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.answers import json_answer
from api.cursors import CursorOf
from api.letters import LetterQuery
from api.lifecycle_views import cause_document, letter_document
from api.paths import base
from api.queries import Query
from schema.statements.dead_letters import list_causes, list_dead_letters

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from api.exchange import Exchange
    from infra.database import Database

# Groups are made of so many letters, the newest ones.
GROUP_WINDOW = 10_000


class DeadLetters:
    """The handlers that read the DLQ."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_all(self, request: Request, exchange: Exchange) -> Response:
        """List dead letters, newest first."""
        query = Query(request.query_params)
        asked = LetterQuery(query, exchange.known_caller)
        page_size, after = query.page_size(), query.after()
        query.finish()
        cursor = CursorOf("dlq", asked.filters())
        before = None if after is None else cursor.letter(after)
        which = await asked.resolve(self._database)
        rows = await self._database.fetch(
            list_dead_letters(which, before=before, most=page_size + 1)
        )
        shown = rows[:page_size]
        end: str | None = None
        if len(rows) > page_size:
            last = shown[-1]
            end = cursor.after_letter(last.died_at, last.job_id, last.ordinal)
        items = [letter_document(row, base=base(request)) for row in shown]
        return json_answer({"items": items, "next": end})

    async def list_groups(self, request: Request, exchange: Exchange) -> Response:
        """Group the newest letters by fingerprint, the commonest cause first."""
        query = Query(request.query_params)
        asked = LetterQuery(query, exchange.known_caller)
        page_size = query.page_size()
        query.finish()
        which = await asked.resolve(self._database)
        rows = await self._database.fetch(list_causes(which, window=GROUP_WINDOW, most=page_size))
        return json_answer({"items": [cause_document(row) for row in rows]})
