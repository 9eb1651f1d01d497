"""``GET /dlq`` and ``GET /dlq/groups``: what gave up, and what it has in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.answers import json_answer
from api.cursors import CursorOf
from api.letters import LetterQuery
from api.lifecycle_views import cause_document, letter_document
from api.paths import base
from api.queries import LARGEST_PAGE, Query
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
        # The class is no column of an index: a page looks at a bounded number of letters for it.
        window = page_size if asked.error_class is None else LARGEST_PAGE
        rows = await self._database.fetch(list_dead_letters(which, before=before, most=window + 1))
        looked = rows[:window]
        found = [row for row in looked if asked.error_class in {None, row.error_class}]
        shown = found[:page_size]
        last = looked[-1] if len(rows) > window else None
        if len(found) > page_size:
            last = shown[-1]
        end = None if last is None else cursor.after_letter(last.died_at, last.job_id, last.ordinal)
        items = [letter_document(row, base=base(request)) for row in shown]
        return json_answer({"items": items, "next": end})

    async def list_groups(self, request: Request, exchange: Exchange) -> Response:
        """Group the newest letters by fingerprint, the commonest cause first."""
        query = Query(request.query_params)
        asked = LetterQuery(query, exchange.known_caller)
        page_size = query.page_size()
        if asked.error_class is not None:
            query.refuse("errorClass", "is no parameter of this address")
        query.finish()
        which = await asked.resolve(self._database)
        rows = await self._database.fetch(list_causes(which, window=GROUP_WINDOW, most=page_size))
        return json_answer({"items": [cause_document(row) for row in rows]})
