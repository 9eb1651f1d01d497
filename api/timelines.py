"""``GET /jobs/{jobId}/timeline`` and ``GET /correlations/{correlationId}``: what happened, when."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from api.answers import json_answer
from api.chronicle import START, Chronicle
from api.cursors import CursorOf
from api.paths import base, correlation_id, job_key, no_correlation, no_input, no_job
from api.places import Places, PlacesOfOwners
from api.queries import Query
from api.views import error_document, time_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy import Row
    from starlette.requests import Request
    from starlette.responses import Response

    from api.chronicle import Page
    from api.exchange import Exchange
    from infra.database import Database

# Stories may take so much of the pool, and one owner's half of that: the rest is for all else.
_SHARE_OF_POOL = 0.4
_WAIT_SECONDS = 5.0
_REFUSAL = "too many stories are read at once"
_ORDINAL = re.compile(r"0|[1-9][0-9]{0,8}")


class Timelines:
    """The handlers of stories; a few are read at once, and fewer of one owner."""

    def __init__(self, database: Database, *, pool_size: int) -> None:
        self._chronicle = Chronicle(database)
        many = max(1, int(pool_size * _SHARE_OF_POOL))
        self._places = Places(many, wait_seconds=_WAIT_SECONDS, refusal=_REFUSAL)
        self._of_owners = PlacesOfOwners(
            max(1, many // 2), wait_seconds=_WAIT_SECONDS, refusal=_REFUSAL
        )

    async def of_job(self, request: Request, exchange: Exchange) -> Response:
        """Tell the story of a job, or of one input of it."""
        query = Query(request.query_params)
        asked = query.one("ordinal", _ORDINAL, "the ordinal of an input")
        page_size, after = query.page_size(), query.after()
        query.finish()
        key = job_key(request, exchange)
        ordinal = None if asked is None else int(asked)
        cursor = CursorOf("timeline", (key, ordinal))
        async with self._place(exchange):
            head = await self._chronicle.head(
                key, scope=exchange.known_caller.scope, ordinal=ordinal
            )
            if head is None:
                raise no_job()
            if ordinal is not None and ordinal >= head.total:
                raise no_input()
            begin = START if after is None else cursor.step(after)
            page = await self._chronicle.of_job(head, ordinal=ordinal, after=begin, size=page_size)
        address = f"{base(request)}/jobs/{key}"
        links = {"self": address, "inputs": f"{address}/inputs"}
        document = {
            "jobId": head.key,
            "status": head.status,
            "kind": head.kind,
            "owner": head.owner,
            "total": head.total,
            "ordinal": ordinal,
            "correlationId": head.correlation_id,
            "traceId": trace_id(head.traceparent),
            "links": links if ordinal is None else links | {"input": f"{address}/inputs/{ordinal}"},
        }
        return json_answer(document | _page_document(page, cursor))

    async def of_correlation(self, request: Request, exchange: Exchange) -> Response:
        """Tell the stories of all jobs of a correlation id, the oldest job first."""
        query = Query(request.query_params)
        page_size, after = query.page_size(), query.after()
        query.finish()
        sought, scope = correlation_id(request), exchange.known_caller.scope
        cursor = CursorOf("correlation", (sought, scope))
        begin = START if after is None else cursor.step(after)
        async with self._place(exchange):
            page = await self._chronicle.of_correlation(
                sought, scope=scope, after=begin, size=page_size
            )
        if page is None:
            raise no_correlation()
        return json_answer({"correlationId": sought} | _page_document(page, cursor))

    @asynccontextmanager
    async def _place(self, exchange: Exchange) -> AsyncIterator[None]:
        # One of its own first: who waits for that is in nobody else's way.
        async with self._of_owners.one(exchange.known_caller.owner_id), self._places.one():
            yield


def _page_document(page: Page, cursor: CursorOf) -> dict[str, Any]:
    end = None if page.end is None else cursor.after_step(page.end)
    return {"items": [_step_document(head, row) for head, row in page.steps], "next": end}


def _step_document(head: Row[Any], row: Row[Any]) -> dict[str, Any]:
    """Give a step; members that do not apply are absent."""
    document = {
        "type": row.type,
        "jobId": head.key,
        "at": time_text(row.at),
        "untilAt": time_text(row.until),
        "isExpected": bool(row.is_expected),
        "sinceMs": None if row.since_ms is None else round(row.since_ms),
        "ordinal": row.ordinal,
        "lastOrdinal": row.last_ordinal,
        "inputs": row.inputs,
        "outcome": row.outcome,
        "generation": row.generation,
        "attempt": row.attempt,
        "worker": row.worker,
        "error": error_document(row.error_class, row.error_message),
        "elapsedMs": row.elapsed_ms,
        "nextAt": time_text(row.next_at),
        "entryId": row.entry_id,
        "epoch": row.epoch,
        "fingerprint": row.fingerprint,
        "redriveId": None if row.redrive_id is None else str(row.redrive_id),
        "requestedBy": row.requested_by,
        "because": row.because,
        "traceId": trace_id(head.traceparent) if row.type == "job.accepted" else None,
    }
    always = {"type", "jobId", "at", "isExpected"}
    return {name: value for name, value in document.items() if value is not None or name in always}


def trace_id(traceparent: str | None) -> str | None:
    """Give the id of the trace that a job belongs to."""
    return None if traceparent is None else traceparent.split("-")[1]
