"""Accepting a job: one transaction stores it whole, and an idempotency key stores it once."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from api.problems import BadField, BadFields, Problem, unavailable
from infra.database import copy_text, rows_of
from schema.chunking import chunk_size
from schema.ids import uuid7
from schema.statements.paces import list_paces
from schema.statements.read import tell_past
from schema.statements.submit import (
    INPUT_COPY_COLUMNS,
    find_by_idempotency_key,
    insert_entries,
    insert_job,
    insert_job_alone,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from uuid import UUID

    from sqlalchemy.ext.asyncio import AsyncConnection

    from api.auth import Caller
    from api.spool import Spool
    from api.submission import Submission, Times
    from infra.database import Database
    from infra.wakeup import Notifier
    from schema.message import Trace

_PACE_SECONDS = 10.0
# Each statement has its own time limit: none may grow with the job. An entry costs several times
# what an input does, for its indexes.
_ENTRIES_PER_INSERT = 20_000
_ROWS_PER_COPY = 100_000
_BYTES_PER_COPY = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Accepted:
    """The job that now exists, or existed since the key was first used."""

    key: str
    correlation_id: str
    replayed: bool


class Submitter:
    """Stores jobs and wakes the dispatcher."""

    def __init__(self, database: Database, notifier: Notifier, *, copy_from_inputs: int) -> None:
        self._database = database
        self._notifier = notifier
        self._copy_from_inputs = copy_from_inputs
        self._paces: dict[str, float] = {}
        self._paces_until = 0.0

    async def accept(
        self, submission: Submission, *, caller: Caller, trace: Trace, idempotency_key: str | None
    ) -> Accepted:
        """Store the job, or find the one that the same request made before."""
        digest: bytes | None = None
        if idempotency_key is not None:
            if submission.inputs.many < self._copy_from_inputs:
                digest = submission.digest()
            else:
                digest = await asyncio.to_thread(submission.digest)
        past = BadFields(line=lambda: submission.line)
        await self.add_past(submission.times, past)
        if past.count:
            # A replay may come after its times have passed: it still is the same request.
            if idempotency_key is None or digest is None:
                raise past.problem()
            earlier = await self._earlier(caller.owner_id, idempotency_key, digest)
            if earlier is None:
                raise past.problem()
            return earlier
        key = await self._insert(submission, caller, trace, idempotency_key, digest)
        if key is not None:
            self._notifier.notify()
            return Accepted(key, trace.correlation_id, replayed=False)
        assert idempotency_key is not None, "only a key can be taken"
        assert digest is not None, "a key comes with a digest"
        earlier = await self._earlier(caller.owner_id, idempotency_key, digest)
        if earlier is None:
            raise unavailable("the job that used this key was just removed")
        return earlier

    async def _insert(
        self,
        submission: Submission,
        caller: Caller,
        trace: Trace,
        idempotency_key: str | None,
        digest: bytes | None,
    ) -> str | None:
        fields, inputs, job_id = submission.fields, submission.inputs, uuid7()
        head: dict[str, Any] = {
            "id": job_id,
            "owner_id": caller.owner_id,
            "kind": submission.kind.name,
            "priority": fields.priority,
            "max_attempts": fields.policy.maxAttempts or submission.kind.max_attempts,
            "fail_fast": fields.policy.failFast,
            "tolerated": fields.policy.tolerated(inputs.many),
            "options": submission.options,
            "metadata": submission.metadata,
            "scheduled_for": fields.scheduledFor,
            "expires_at": fields.expiresAt,
            "total": inputs.many,
            "idempotency_key": idempotency_key,
            "request_digest": digest,
            "correlation_id": trace.correlation_id,
            "traceparent": trace.traceparent,
            "tracestate": trace.tracestate,
            "baggage": trace.baggage,
        }
        paces = await self._known_paces()
        size = chunk_size(paces.get(submission.kind.name), submission.kind.chunk)
        if inputs.many < self._copy_from_inputs:
            bodies = f"[{','.join(inputs.texts())}]"
            statement = insert_job(head, chunk_size=size, bodies=bodies)
            rows = await self._database.fetch(statement)
            return str(rows[0].key) if rows else None

        async def unit(connection: AsyncConnection) -> str | None:
            found = await rows_of(connection, insert_job_alone(head))
            if not found:
                return None
            (stored,) = found
            entry_ids: list[int] = []
            span = _ENTRIES_PER_INSERT * size
            for first in range(0, inputs.many, span):
                statement = insert_entries(
                    job_id, first=first, until=min(first + span, inputs.many), chunk_size=size
                )
                (inserted,) = await rows_of(connection, statement)
                entry_ids += inserted.entry_ids
            rows = _Rows(job_id, inputs, entry_ids, size)
            while rows.given < inputs.many:
                blocks = rows.of_one_statement()
                await copy_text(connection, "input", columns=INPUT_COPY_COLUMNS, blocks=blocks)
            return str(stored.key)

        return await self._database.run(unit)

    async def _earlier(
        self, owner_id: UUID, idempotency_key: str, digest: bytes
    ) -> Accepted | None:
        statement = find_by_idempotency_key(owner_id, idempotency_key)
        for row in await self._database.fetch(statement):
            if bytes(row.request_digest) == digest:
                return Accepted(row.key, row.correlation_id, replayed=True)
            detail = f"the key belongs to job {row.key}, which was another request"
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "idempotency-key-reused",
                detail,
                errors=[BadField("header", "Idempotency-Key", detail)],
            )
        return None

    async def add_past(self, times: Times, bad: BadFields) -> None:
        """Note each of the times that is past by the database's clock."""
        if times == (None, None):
            return
        statement = tell_past(scheduled_for=times.scheduled_for, expires_at=times.expires_at)
        for row in await self._database.fetch(statement):
            if row.scheduled_for:
                bad.add("/scheduledFor", "is in the past")
            if row.expires_at:
                bad.add("/expiresAt", "is in the past")

    async def _known_paces(self) -> dict[str, float]:
        if time.monotonic() >= self._paces_until:
            rows = await self._database.fetch(list_paces())
            self._paces = {row.kind: row.input_ms for row in rows}
            self._paces_until = time.monotonic() + _PACE_SECONDS
        return self._paces


class _Rows:
    """The rows of a job's inputs as COPY reads them, a block at a time, made in a thread."""

    def __init__(
        self, job_id: UUID, inputs: Spool, entry_ids: Sequence[int], chunk_size: int
    ) -> None:
        self._job_id = str(job_id)
        self._blocks = inputs.blocks()
        self._entry_ids = entry_ids
        self._chunk_size = chunk_size
        self.given = 0

    def take(self) -> bytes:
        """Give the next rows; nothing at the end."""
        # COPY reads the backslashes of JSON as its own, unless they are doubled.
        block = next(self._blocks, b"").replace(b"\\", rb"\\").decode()
        job_id, entry_ids, size, first = self._job_id, self._entry_ids, self._chunk_size, self.given
        rows = [
            f"{job_id}\t{ordinal}\t{body}\t{entry_ids[ordinal // size]}\n"
            for ordinal, body in enumerate(block.split("\n")[:-1], first)
        ]
        self.given += len(rows)
        return "".join(rows).encode()

    async def of_one_statement(self) -> AsyncIterator[bytes]:
        """Give blocks until they are enough for a statement, or there are no more."""
        until, size = self.given + _ROWS_PER_COPY, 0
        while self.given < until and size < _BYTES_PER_COPY:
            block = await asyncio.to_thread(self.take)
            if not block:
                return
            size += len(block)
            yield block
