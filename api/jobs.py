"""The addresses under ``/jobs``: submit a job, read one, list them, page through inputs."""

from __future__ import annotations

import asyncio
import datetime as dt
import re
from http import HTTPStatus
from typing import TYPE_CHECKING
from uuid import UUID

from api.answers import json_answer
from api.bodies import SMALL_BYTES, BodyReader
from api.cursors import CursorOf
from api.inputs import Limits
from api.paths import base, job_key, no_job
from api.problems import BadField, Problem
from api.queries import OWNER, Query, refuse_parameters
from api.reading import Reading
from api.submission import BadSubmission
from api.submit import Sender
from api.views import input_document, job_document, summary_document
from infra.telemetry import names
from infra.telemetry.logs import CORRELATION_ID
from infra.telemetry.tracing import OFF, continued
from schema.lifecycle import InputStatus, JobStatus
from schema.statements.read import (
    JobFilter,
    find_job,
    find_owner,
    list_inputs,
    list_jobs,
    locate_job,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from api.bodies import Body
    from api.exchange import Exchange
    from api.submit import Accepted, Submitter
    from infra.database import Database
    from infra.settings import Settings
    from infra.telemetry.tracing import Tracing
    from schema.kinds import Kind

# How many rows a page may look at for a filter that no index serves.
SCAN_WINDOW = 10_000
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?")
_FIRST = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
_LAST = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
_LAST_ID = UUID(int=2**128 - 1)


class Jobs:
    """The handlers of jobs."""

    def __init__(
        self,
        settings: Settings,
        *,
        database: Database,
        submitter: Submitter,
        kinds: Mapping[str, Kind],
        tracing: Tracing = OFF,
    ) -> None:
        self._tracing = tracing
        self._database = database
        self._submitter = submitter
        self._kinds = kinds
        self._limits = Limits(
            inputs=settings.max_inputs,
            input_bytes=settings.max_input_bytes,
            stream_inputs=settings.max_stream_inputs,
        )
        self._data_content_limit = settings.data_content_limit
        self._data_content_bytes = settings.data_content_bytes
        self._copy_from_inputs = settings.copy_from_inputs
        self._bodies = BodyReader(
            max_body_bytes=settings.max_body_bytes,
            max_stream_bytes=settings.max_stream_bytes,
            max_concurrent_large=settings.large_submissions,
        )

    async def submit(self, request: Request, exchange: Exchange) -> Response:
        """Accept a job: 202 once it is stored."""
        refuse_parameters(request)
        idempotency_key = _idempotency_key(request)
        async with self._bodies.body(request) as body:
            accepted = await self._accept(body, exchange, idempotency_key)
        exchange.job, exchange.replayed = accepted.key, accepted.replayed
        headers = {"Location": f"{base(request)}/jobs/{accepted.key}"}
        if accepted.replayed:
            headers["Idempotency-Replayed"] = "true"
            # The id under which the job is found, which need not be that of this request.
            exchange.answered_correlation_id = accepted.correlation_id
        return json_answer(
            {"jobId": accepted.key, "status": "SUBMITTED"}, HTTPStatus.ACCEPTED, headers
        )

    async def _accept(
        self, body: Body, exchange: Exchange, idempotency_key: str | None
    ) -> Accepted:
        reading = Reading(
            body.file,
            self._kinds,
            self._limits,
            by_lines=body.has_lines,
            enough=self._copy_from_inputs,
            digests=idempotency_key is not None,
        )
        try:
            if body.size <= SMALL_BYTES:
                reading.gather()
            else:
                await asyncio.to_thread(reading.gather)
            return await self._store(reading, exchange, idempotency_key)
        except BadSubmission as refused:
            await self._submitter.add_past(refused.times, refused.bad)
            raise refused.bad.problem() from None

    async def _store(
        self, reading: Reading, exchange: Exchange, idempotency_key: str | None
    ) -> Accepted:
        with self._tracing.inside(names.SUBMIT, exchange.trace) as span:
            trace = continued(exchange.trace, span)
            sender = Sender(exchange.known_caller, trace, idempotency_key)
            try:
                accepted = await self._submitter.accept(reading, sender)
            finally:
                if reading.submission is not None:
                    exchange.inputs = reading.submission.many_inputs
                    span.set_attribute(names.KIND, reading.submission.kind.name)
                    span.set_attribute(names.INPUTS, exchange.inputs)
            span.set_attribute(names.JOB_KEY, accepted.key)
            span.set_attribute(names.REPLAYED, accepted.replayed)
        return accepted

    async def show(self, request: Request, exchange: Exchange) -> Response:
        """Show one job."""
        refuse_parameters(request)
        key = job_key(request, exchange)
        statement = find_job(
            key,
            owner_id=exchange.known_caller.scope,
            most_inputs=self._data_content_limit,
            most_bytes=self._data_content_bytes,
        )
        for row in await self._database.fetch(statement):
            kind = self._kinds.get(row.kind)
            return json_answer(job_document(row, kind=kind, base=base(request)))
        raise no_job()

    async def list_all(self, request: Request, exchange: Exchange) -> Response:
        """List jobs, newest first."""
        caller, query = exchange.known_caller, Query(request.query_params)
        owner = query.one("owner", OWNER, "the name of an owner")
        if owner is not None and not caller.is_admin:
            raise Problem(HTTPStatus.FORBIDDEN, "forbidden", "only an admin may name an owner")
        statuses = query.many("status", JobStatus)
        kinds = query.many("kind", self._kinds)
        correlation_id = query.one("correlationId", CORRELATION_ID, "a correlation id")
        requested_from, requested_to = query.time("requestedFrom"), query.time("requestedTo")
        page_size, after = query.page_size(), query.after()
        query.finish()
        cursor = CursorOf(
            "jobs",
            (caller.scope, owner, statuses, kinds, correlation_id, requested_from, requested_to),
        )
        before_time, before_id = (_LAST, _LAST_ID) if after is None else cursor.job(after)
        owner_id = caller.scope
        if owner is not None:
            owners = await self._database.fetch(find_owner(owner))
            if not owners:
                return json_answer({"items": [], "next": None})
            owner_id = owners[0].id
        which = JobFilter(
            owner_id=owner_id,
            statuses=statuses,
            kinds=kinds,
            correlation_id=correlation_id,
            requested_from=requested_from or _FIRST,
            requested_to=requested_to or _LAST,
            before_time=before_time,
            before_id=before_id,
        )
        window = SCAN_WINDOW if which.is_selective() else page_size + 1
        rows = await self._database.fetch(list_jobs(which, most=page_size + 1, window=window))
        found = [row for row in rows if row.key is not None]
        shown = found[:page_size]
        end: str | None = None
        if len(found) > page_size:
            end = cursor.after_job(shown[-1].requested_at, shown[-1].id)
        elif rows and rows[0].scanned == window:
            end = cursor.after_job(rows[0].last_requested_at, rows[0].last_id)
        items = [summary_document(row, base=base(request)) for row in shown]
        return json_answer({"items": items, "next": end})

    async def list_inputs(self, request: Request, exchange: Exchange) -> Response:
        """List the inputs of a job by ordinal."""
        query = Query(request.query_params)
        states = query.many("status", InputStatus)
        page_size, after = query.page_size(), query.after()
        query.finish()
        key = job_key(request, exchange)
        located = await self._database.fetch(locate_job(key, owner_id=exchange.known_caller.scope))
        if not located:
            raise no_job()
        job_id, total = located[0].id, located[0].total
        cursor = CursorOf("inputs", (key, states))
        begin = -1 if after is None else cursor.ordinal(after)
        until = min(begin + (page_size if states is None else SCAN_WINDOW), total - 1)
        rows = await self._database.fetch(
            list_inputs(job_id, after=begin, until=until, states=states, most=page_size + 1)
        )
        shown = rows[:page_size]
        end: str | None = None
        if len(rows) > page_size:
            end = cursor.after_ordinal(shown[-1].ordinal)
        elif until < total - 1:
            end = cursor.after_ordinal(until)
        return json_answer({"items": [input_document(row) for row in shown], "next": end})


def _idempotency_key(request: Request) -> str | None:
    values = request.headers.getlist("idempotency-key")
    if not values:
        return None
    if len(values) > 1 or not _IDEMPOTENCY_KEY.fullmatch(values[0]):
        detail = "must be given once, as 1 to 255 printable ASCII characters"
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "invalid-request",
            f"Idempotency-Key {detail}",
            errors=[BadField("header", "Idempotency-Key", detail)],
        )
    return values[0]
