"""Taking final inputs back into work, and how far that has come."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from uuid import UUID

from api.answers import json_answer
from api.letters import resolve_request
from api.lifecycle_models import LetterRequest, Nothing, ReprocessRequest
from api.lifecycle_views import accepted_document, redrive_document
from api.paths import base, job_key, no_job, no_redrive, ordinal, redrive_id
from api.problems import conflict, not_found
from api.queries import refuse_parameters
from infra import redrive
from infra.redrive_choice import InputChoice
from schema.lifecycle import InputStatus
from schema.statements.dead_letters import locate_dead_letter
from schema.statements.read import find_job_key, locate_job
from schema.statements.redrive import find_redrive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Row
    from sqlalchemy.ext.asyncio import AsyncConnection
    from starlette.requests import Request
    from starlette.responses import Response

    from api.exchange import Exchange
    from api.fields import FieldsReader
    from infra.database import Database
    from infra.redrive_choice import Choice
    from infra.wakeup import Notifier
    from schema.kinds import Kind


class Redrives:
    """The handlers of redrives."""

    def __init__(
        self,
        database: Database,
        notifier: Notifier,
        fields: FieldsReader,
        *,
        kinds: Mapping[str, Kind],
    ) -> None:
        self._database = database
        self._notifier = notifier
        self._fields = fields
        self._chunks = {name: kind.chunk for name, kind in kinds.items()}

    async def reprocess_job(self, request: Request, exchange: Exchange) -> Response:
        """Take inputs of one job back into work."""
        refuse_parameters(request)
        key = job_key(request, exchange)
        asked = await self._fields.read(request, ReprocessRequest)
        job = await self._job(key, exchange)
        ordinals = None if asked.ordinals is None else tuple(sorted(set(asked.ordinals)))
        choice = InputChoice(job.id, tuple(sorted(set(asked.statuses))), ordinals)
        if asked.dryRun:
            return await self._count(choice, key)
        return await self._accept(request, exchange, choice, owner_id=job.owner_id)

    async def reprocess_letter(self, request: Request, exchange: Exchange) -> Response:
        """Take one dead letter back into work."""
        refuse_parameters(request)
        key, number = job_key(request, exchange), ordinal(request)
        await self._fields.read(request, Nothing)
        job = await self._job(key, exchange)
        letter = locate_dead_letter(key, number, owner_id=exchange.known_caller.scope)
        if not await self._database.fetch(letter):
            raise not_found("this input is not in the DLQ")
        choice = InputChoice(job.id, (InputStatus.DLQ,), (number,))
        return await self._accept(request, exchange, choice, owner_id=job.owner_id)

    async def reprocess_letters(self, request: Request, exchange: Exchange) -> Response:
        """Take all dead letters that match a filter back into work."""
        refuse_parameters(request)
        asked = await self._fields.read(request, LetterRequest)
        exchange.job = asked.jobId
        choice = await resolve_request(asked, caller=exchange.known_caller, database=self._database)
        if asked.dryRun:
            return await self._count(choice, asked.jobId)
        return await self._accept(request, exchange, choice, owner_id=choice.owner_id)

    async def show(self, request: Request, exchange: Exchange) -> Response:
        """Show how far a redrive has come."""
        refuse_parameters(request)
        identity = redrive_id(request)
        exchange.redrive = str(identity)
        statement = find_redrive(identity, owner_id=exchange.known_caller.scope)
        for row in await self._database.fetch(statement):
            stored = json.loads(row.filter)
            if "job" in stored:
                for job in await self._database.fetch(find_job_key(UUID(stored["job"]))):
                    exchange.job = job.key
            return json_answer(redrive_document(row, job=exchange.job, base=base(request)))
        raise no_redrive()

    async def _job(self, key: str, exchange: Exchange) -> Row[Any]:
        scope = exchange.known_caller.scope
        for row in await self._database.fetch(locate_job(key, owner_id=scope)):
            if row.pruned_at is not None:
                raise conflict("the inputs of this job were removed when its time was over")
            return row
        raise no_job()

    async def _count(self, choice: Choice, key: str | None) -> Response:
        async def unit(connection: AsyncConnection) -> int:
            return await redrive.count(connection, choice)

        matched = await self._database.run(unit)
        return json_answer({"dryRun": True, "jobId": key, "matched": matched})

    async def _accept(
        self, request: Request, exchange: Exchange, choice: Choice, *, owner_id: UUID | None
    ) -> Response:
        caller = exchange.known_caller

        async def unit(connection: AsyncConnection) -> tuple[int, redrive.Progress]:
            matched = await redrive.count(connection, choice)
            progress = await redrive.request(
                connection,
                choice,
                requested_by=caller.owner,
                owner_id=owner_id,
                chunks=self._chunks,
                origin=exchange.trace.traceparent,
            )
            return matched, progress

        matched, progress = await self._database.run(unit)
        if progress.redriven:
            self._notifier.notify()
        if not progress.finished:
            self._notifier.notify_control()
        exchange.redrive, exchange.inputs = str(progress.redrive_id), progress.redriven
        document = accepted_document(progress, matched, job=exchange.job, base=base(request))
        headers = {"Location": document["links"]["self"]}
        return json_answer(document, HTTPStatus.ACCEPTED, headers)
