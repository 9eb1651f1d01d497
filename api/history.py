"""``GET /jobs/{jobId}/inputs/{ordinal}``: an input, all its attempts, and what happens next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.answers import json_answer
from api.lifecycle_views import history_document
from api.next_step import Standing, next_step
from api.paths import base, job_key, no_input, ordinal
from api.queries import refuse_parameters
from schema.lifecycle import EntryState, InputStatus, JobStatus
from schema.statements.history import find_input, list_attempts

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from api.exchange import Exchange
    from infra.database import Database

_MOST_ATTEMPTS = 1_000


class History:
    """The handler of one input."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def show(self, request: Request, exchange: Exchange) -> Response:
        """Show one input of a job with its whole history."""
        refuse_parameters(request)
        key, number = job_key(request, exchange), ordinal(request)
        statement = find_input(key, number, owner_id=exchange.known_caller.scope)
        for row in await self._database.fetch(statement):
            attempts = await self._database.fetch(
                list_attempts(row.job_id, row.ordinal, most=_MOST_ATTEMPTS)
            )
            standing = Standing(
                state=InputStatus(row.state),
                job_status=JobStatus(row.job_status),
                entry_state=None if row.entry_state is None else EntryState(row.entry_state),
                available_at=row.available_at,
                worker=row.worker,
                locked_until=row.locked_until,
                parked_reason=row.parked_reason,
                kind=row.kind,
                kind_is_idle=row.kind_is_idle,
                kind_ran_at=row.kind_ran_at,
            )
            document = history_document(row, attempts, now=next_step(standing), base=base(request))
            return json_answer(document)
        raise no_input()
