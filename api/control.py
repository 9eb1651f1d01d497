"""``POST /jobs/{jobId}/pause``, ``/resume`` and ``/cancel``: one compare-and-set each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from api.answers import json_answer
from api.lifecycle_models import Nothing
from api.paths import job_key, no_job
from api.problems import conflict
from api.queries import refuse_parameters
from schema.lifecycle import ACTIVE_JOB_STATUSES, JobStatus
from schema.statements.control import cancel_job, pause_job, resume_job

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy.sql.elements import TextClause
    from starlette.requests import Request
    from starlette.responses import Response

    from api.exchange import Exchange
    from api.fields import FieldsReader
    from api.resource import Handler
    from infra.database import Database
    from infra.wakeup import Notifier


@dataclass(frozen=True, slots=True)
class _Move:
    """A move, the statuses in which there is nothing to do for it, and its name in a refusal."""

    statement: Callable[..., TextClause]
    done: frozenset[JobStatus]
    participle: str


MOVES: Mapping[str, _Move] = {
    "pause": _Move(pause_job, frozenset({JobStatus.PAUSED}), "paused"),
    "resume": _Move(resume_job, ACTIVE_JOB_STATUSES, "resumed"),
    "cancel": _Move(cancel_job, frozenset({JobStatus.CANCELLED}), "cancelled"),
}


class Control:
    """The handlers that move a job; its work follows behind, however much it is."""

    def __init__(self, database: Database, notifier: Notifier, fields: FieldsReader) -> None:
        self._database = database
        self._notifier = notifier
        self._fields = fields

    def handlers(self) -> dict[str, Handler]:
        """Give the handler of each move by its name."""
        return {name: self._handler(move) for name, move in MOVES.items()}

    def _handler(self, move: _Move) -> Handler:
        async def handle(request: Request, exchange: Exchange) -> Response:
            refuse_parameters(request)
            key = job_key(request, exchange)
            await self._fields.read(request, Nothing)
            statement = move.statement(key, owner_id=exchange.known_caller.scope)
            for row in await self._database.fetch(statement):
                exchange.status_before, exchange.status_after = row.was, row.status
                if row.changed:
                    self._notifier.notify_control()
                elif row.status not in move.done:
                    raise conflict(
                        f"the job is {row.status}: it cannot be {move.participle}",
                        jobId=key,
                        jobStatus=row.status,
                    )
                return json_answer({"jobId": key, "status": row.status, "previousStatus": row.was})
            raise no_job()

        return handle
