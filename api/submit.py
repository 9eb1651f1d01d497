"""Accepting a job: one transaction stores it whole, and an idempotency key stores it once."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy.exc import DBAPIError

from api.problems import BadField, BadFields, Problem, unavailable
from api.reading import KindCameLast
from infra.database import copy_text, rows_of
from infra.retry import is_statement_timeout, sqlstate
from schema.chunking import chunk_size
from schema.errors import Unavailable
from schema.ids import uuid7
from schema.statements.paces import list_paces
from schema.statements.read import tell_past
from schema.statements.submit import (
    INPUT_COPY_COLUMNS,
    find_by_idempotency_key,
    insert_entries,
    insert_job,
    insert_job_alone,
    reserve_entries,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from uuid import UUID

    from sqlalchemy import Row
    from sqlalchemy.ext.asyncio import AsyncConnection
    from sqlalchemy.sql.elements import TextClause

    from api.auth import Caller
    from api.reading import Reading
    from api.submission import Submission, Times
    from infra.database import Database
    from infra.wakeup import Notifier
    from schema.kinds import Kind
    from schema.message import Trace

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_PACE_SECONDS = 10.0
# Each statement has its own time limit: none may grow with the job. An entry costs several times
# what an input does, for its indexes.
_ENTRIES_PER_INSERT = 20_000
_ROWS_PER_COPY = 50_000
_BYTES_PER_COPY = 64 * 1024 * 1024
# Reading, and the checks of a kind from outside, count as the statement's own time.
_SECONDS_PER_COPY = 5.0
# Who waited for a key has waited for as long as a statement may take already.
_KEY_SECONDS = 10
# Of a limit of Postgres, such as its queue of notifications.
_TOO_MANY_NOTIFICATIONS = "54000"
# The time limit of the statement comes first.
_KEY_LOCK_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class Accepted:
    """The job that now exists, or existed since the key was first used."""

    key: str
    correlation_id: str
    replayed: bool


@dataclass(frozen=True, slots=True)
class Sender:
    """Who submits a job, as part of which trace, and the key that the request comes with."""

    caller: Caller
    trace: Trace
    idempotency_key: str | None


@dataclass(slots=True, eq=False)
class _NotStored(Exception):
    """The transaction is of no use: something is wrong with the job, or its key was used."""

    past: BadFields = field(default_factory=BadFields)


class Submitter:
    """Stores jobs and wakes the dispatcher."""

    def __init__(self, database: Database, notifier: Notifier) -> None:
        self._database = database
        self._notifier = notifier
        self._paces: dict[str, float] = {}
        self._paces_until = 0.0

    async def accept(self, reading: Reading, sender: Sender) -> Accepted:
        """Store the job, or find the one that the same request made before.

        What was not read to its end before is stored while it is read.
        """
        past = BadFields()
        try:
            with _telling_of_the_key(sender):
                if reading.submission is not None:
                    key = await self._insert(reading, reading.submission, sender)
                else:
                    key = await self._copy(reading, sender)
        except KindCameLast:
            # What was copied is gone again; now the kind is known.
            await asyncio.to_thread(reading.gather_again)
            return await self.accept(reading, sender)
        except _NotStored as refused:
            past = refused.past
        else:
            return Accepted(key, sender.trace.correlation_id, replayed=False)
        # A replay may come after its times have passed: it still is the same request.
        earlier = await self._earlier(sender, reading)
        if earlier is not None:
            return earlier
        if past.count:
            raise past.problem()
        assert sender.idempotency_key is not None, "only a key can be taken"
        raise unavailable("the job that used this key was just removed")

    async def _insert(self, reading: Reading, submission: Submission, sender: Sender) -> str:
        past = BadFields(line=lambda: submission.line)
        await self.add_past(submission.times, past)
        if past.count:
            raise _NotStored(past)
        size = await self._chunk_size(submission.kind)
        head = _head(uuid7(), submission, sender, reading)
        bodies = f"[{','.join(reading.gathered())}]"
        insert = partial(
            insert_job,
            head,
            chunk_size=size,
            bodies=bodies,
            lock_seconds=_lock_seconds(sender),
        )
        wake = self._notifier.along()
        try:
            rows = await self._database.fetch(insert(wake=wake))
        except DBAPIError as error:
            if wake is None or sqlstate(error) != _TOO_MANY_NOTIFICATIONS:
                raise
            # Somebody listens and does not hear: a wake-up is a courtesy, and costs no job.
            wake, rows = None, await self._database.fetch(insert())
        for row in rows:
            if wake is None:
                await self._notify()
            return str(row.key)
        raise _NotStored

    async def _notify(self) -> None:
        self._notifier.notify()
        await asyncio.sleep(0)  # what wakes the others goes out before the answer is made

    async def _copy(self, reading: Reading, sender: Sender) -> str:
        key = sender.idempotency_key
        if key is not None:
            found = find_by_idempotency_key(sender.caller.owner_id, key)
            if await self._database.fetch(found):
                # Most likely the same request: nothing is written only to be thrown away.
                await asyncio.to_thread(reading.finish)
                raise _NotStored
        size = await self._chunk_size(reading.kind)

        async def store(connection: AsyncConnection) -> str:
            return await _copy_whole(connection, reading, sender, size)

        try:
            stored = await self._database.run(store)
        except _NotStored:
            # Whatever else is wrong is looked for with no transaction open.
            await asyncio.to_thread(reading.finish)
            raise
        await self._notify()
        return stored

    async def _earlier(self, sender: Sender, reading: Reading) -> Accepted | None:
        if sender.idempotency_key is None:
            return None
        statement = find_by_idempotency_key(sender.caller.owner_id, sender.idempotency_key)
        for row in await self._database.fetch(statement):
            if bytes(row.request_digest) == reading.digest():
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
        if times != (None, None):
            _add_past(await self._database.fetch(_tell_past(times)), bad)

    async def _chunk_size(self, kind: Kind) -> int:
        if time.monotonic() >= self._paces_until:
            rows = await self._database.fetch(list_paces())
            self._paces = {row.kind: row.input_ms for row in rows}
            self._paces_until = time.monotonic() + _PACE_SECONDS
        return chunk_size(self._paces.get(kind.name), kind.chunk)


@contextmanager
def _telling_of_the_key(sender: Sender) -> Iterator[None]:
    """Say what else may be behind a timeout of a request with a key: another one with it.

    Whoever comes second waits for the end of the first, which may have many entries to insert.
    """
    try:
        yield
    except Unavailable as error:
        if sender.idempotency_key is None or not is_statement_timeout(error):
            raise
        log.warning("submission.timed_out", error=str(error))
        raise unavailable(
            "the database did not answer in time: perhaps another request with this"
            " Idempotency-Key is just being stored; nothing was lost, try again",
            retry_after_seconds=_KEY_SECONDS,
        ) from error


async def _copy_whole(
    connection: AsyncConnection, reading: Reading, sender: Sender, chunk_size: int
) -> str:
    """Store a job within a transaction, its inputs while they are read; give its key.

    What others may have to wait for comes last: the job, whose key is its owner's.
    """
    if reading.has_given:
        reading.begin_again()
    rows = _Rows(uuid7(), reading, chunk_size)
    while not rows.has_ended:
        await rows.reserve(connection)
        blocks = rows.of_one_statement()
        await copy_text(connection, "input", columns=INPUT_COPY_COLUMNS, blocks=blocks)
    if not reading.is_sound:
        raise _NotStored
    # All is read: what is left to do is little.
    submission = reading.finish()
    past = BadFields(line=lambda: submission.line)
    if submission.times != (None, None):
        _add_past(await rows_of(connection, _tell_past(submission.times)), past)
    head = _head(rows.job_id, submission, sender, reading)
    inserting = insert_job_alone(head, lock_seconds=_lock_seconds(sender))
    stored = () if past.count else await rows_of(connection, inserting)
    if not stored:
        raise _NotStored(past)
    many, span = submission.many_inputs, _ENTRIES_PER_INSERT * chunk_size
    for first in range(0, many, span):
        until = min(first + span, many)
        entry_ids = rows.entry_ids[first // chunk_size : -(-until // chunk_size)]
        statement = insert_entries(
            rows.job_id, first=first, until=until, chunk_size=chunk_size, entry_ids=entry_ids
        )
        await rows_of(connection, statement)
    return str(stored[0].key)


def _tell_past(times: Times) -> TextClause:
    return tell_past(scheduled_for=times.scheduled_for, expires_at=times.expires_at)


def _add_past(rows: Sequence[Row[Any]], bad: BadFields) -> None:
    for row in rows:
        if row.scheduled_for:
            bad.add("/scheduledFor", "is in the past")
        if row.expires_at:
            bad.add("/expiresAt", "is in the past")


def _lock_seconds(sender: Sender) -> float | None:
    """Say how long rows are waited for: who comes second with a key waits for the first's end."""
    return None if sender.idempotency_key is None else _KEY_LOCK_SECONDS


def _head(job_id: UUID, submission: Submission, sender: Sender, reading: Reading) -> dict[str, Any]:
    fields, trace, key = submission.fields, sender.trace, sender.idempotency_key
    return {
        "id": job_id,
        "owner_id": sender.caller.owner_id,
        "kind": submission.kind.name,
        "priority": fields.priority,
        "max_attempts": fields.policy.maxAttempts or submission.kind.max_attempts,
        "fail_fast": fields.policy.failFast,
        "tolerated": fields.policy.tolerated(submission.many_inputs),
        "options": submission.options,
        "metadata": submission.metadata,
        "scheduled_for": fields.scheduledFor,
        "expires_at": fields.expiresAt,
        "total": submission.many_inputs,
        "idempotency_key": key,
        "request_digest": None if key is None else reading.digest(),
        "correlation_id": trace.correlation_id,
        "traceparent": trace.traceparent,
        "tracestate": trace.tracestate,
        "baggage": trace.baggage,
    }


class _Rows:
    """The rows of a job's inputs as COPY reads them, a block at a time, made in a thread."""

    def __init__(self, job_id: UUID, reading: Reading, chunk_size: int) -> None:
        self.job_id = job_id
        self.entry_ids: list[int] = []
        self.has_ended = False
        self._reading = reading
        self._chunk_size = chunk_size
        self._given = self._until = 0
        self._left: list[str] = []
        ends = (f"\t{entry_id}\n" for entry_id in self.entry_ids)
        self._ends = chain.from_iterable(repeat(end, chunk_size) for end in ends)

    async def reserve(self, connection: AsyncConnection) -> None:
        """Take what ids are missing for the entries of the rows that the next statement copies.

        There may be enough: a statement that was full of bytes left rows to copy.
        """
        self._until = self._given + _ROWS_PER_COPY
        missing = -(-self._until // self._chunk_size) - len(self.entry_ids)
        if missing > 0:
            (reserved,) = await rows_of(connection, reserve_entries(missing))
            self.entry_ids += reserved.entry_ids

    async def of_one_statement(self) -> AsyncIterator[bytes]:
        """Give blocks until they are enough for a statement, or there are no more."""
        size, ends_at = 0, time.monotonic() + _SECONDS_PER_COPY
        while (
            self._given < self._until
            and size < _BYTES_PER_COPY
            and (not size or time.monotonic() < ends_at)
        ):
            block = await asyncio.to_thread(self._take)
            if not block:
                self.has_ended = True
                return
            size += len(block)
            yield block

    def _take(self) -> bytes:
        if not self._left:
            self._left = self._reading.block()
        most = self._until - self._given
        bodies, self._left = self._left[:most], self._left[most:]
        first, self._given = self._given, self._given + len(bodies)
        job_id, ordinals = str(self.job_id), range(first, self._given)
        # The ends come last: of those that are taken, each is used.
        rows = [
            f"{job_id}\t{ordinal}\t{body}{end}"
            for ordinal, body, end in zip(ordinals, bodies, self._ends, strict=False)
        ]
        # COPY reads the backslashes of JSON as its own, unless they are doubled.
        return "".join(rows).replace("\\", "\\\\").encode()
