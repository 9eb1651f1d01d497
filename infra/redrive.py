"""Redriving: final inputs go back into work, recorded, a bounded batch in each transaction.

The API asks for a redrive and does its first batch in the same transaction, so that a small one is
done when it is answered; the dispatcher's redriver works off the rest with the same code. Inputs
keep their history: the next generation starts with no attempts spent, and may die again.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from infra.redrive_choice import Choice, InputChoice, read, written
from schema.chunking import ChunkBounds, chunk_size
from schema.ids import uuid7
from schema.lifecycle import InputStatus
from schema.statements import redrive as statements
from schema.statements.dead_letters import LetterFilter, count_dead_letters
from schema.statements.reopen import lock_jobs, look_again, reopen_inputs
from schema.statements.settle import insert_follow_ups, reserve_entry_ids

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Row
    from sqlalchemy.ext.asyncio import AsyncConnection

BATCH_INPUTS = 1_000
# How far a batch looks through the inputs of a job, and how far apart a chunk may be scattered:
# a claim reads the whole range of its entry.
_WINDOW = 20_000
_SPAN = 1_000
_OVERRULED = "the job was ended after this redrive was asked for"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a redrive has come. ``deferred``: a job of it is still being swept."""

    redrive_id: UUID
    matched: int
    redriven: int
    finished: bool
    stopped_reason: str | None
    deferred: bool
    moved: bool


async def count(connection: AsyncConnection, choice: Choice, *, most: int = 1_000_000) -> int:
    """Say how many inputs a redrive would match now, up to ``most``; changes nothing."""
    if isinstance(choice, LetterFilter):
        statement = count_dead_letters(choice, most=most)
    else:
        statement = statements.count_redrivable(
            choice.job_id, statuses=choice.statuses, ordinals=choice.ordinals
        )
    row = (await connection.execute(statement)).one_or_none()
    return 0 if row is None else min(int(row.many), most)


async def request(
    connection: AsyncConnection,
    choice: Choice,
    *,
    requested_by: str,
    owner_id: UUID | None,
    chunks: Mapping[str, ChunkBounds],
    origin: str | None = None,
) -> Progress:
    """Record a redrive and do its first batch; the redriver does the rest, if there is any.

    ``origin`` is the traceparent of the request, to which the traces of the work will link.
    """
    statement = statements.insert_redrive(
        uuid7(),
        owner_id=owner_id,
        requested_by=requested_by,
        source="dlq" if isinstance(choice, LetterFilter) else "job",
        filter=written(choice),
        origin=origin,
    )
    return await advance(connection, (await connection.execute(statement)).one(), chunks=chunks)


async def advance(
    connection: AsyncConnection,
    record: Row[Any],
    *,
    chunks: Mapping[str, ChunkBounds],
    most: int = BATCH_INPUTS,
) -> Progress:
    """Do one batch of a redrive that this transaction holds, and note how far it has come."""
    choice = read(record.source, json.loads(record.filter))
    if isinstance(choice, LetterFilter):
        batch = await _letters(connection, choice, record, most)
    else:
        batch = await _inputs(connection, choice, record, most)
    statuses = choice.statuses if isinstance(choice, InputChoice) else (InputStatus.DLQ,)
    redriven = await _reopen(connection, batch, statuses, chunks, origin=record.origin)
    done = batch.finished or batch.stopped_reason is not None
    totals = (
        await connection.execute(
            statements.note_progress(
                record.id,
                cursor=None if batch.cursor is None else json.dumps(batch.cursor),
                matched=len(batch.inputs),
                redriven=redriven,
                finished=done,
                stopped_reason=batch.stopped_reason,
            )
        )
    ).one()
    before = None if record.cursor is None else json.loads(record.cursor)
    return Progress(
        redrive_id=record.id,
        matched=totals.matched,
        redriven=totals.redriven,
        finished=done,
        stopped_reason=batch.stopped_reason,
        deferred=batch.deferred,
        moved=done or before != batch.cursor,
    )


@dataclass(slots=True)
class _Batch:
    """What one transaction takes on: inputs of locked jobs, and where the next one begins."""

    inputs: list[tuple[UUID, int]]
    kinds: dict[UUID, str]
    cursor: Any
    finished: bool
    deferred: bool = False
    stopped_reason: str | None = None


async def _inputs(
    connection: AsyncConnection, choice: InputChoice, record: Row[Any], most: int
) -> _Batch:
    after = -1 if record.cursor is None else int(json.loads(record.cursor))
    locked = await connection.execute(lock_jobs([choice.job_id], requested_at=record.created_at))
    job = locked.one_or_none()
    if job is None or job.overruled:
        return _Batch([], {}, after, finished=True, stopped_reason=_OVERRULED)
    if job.deferred:
        return _Batch([], {}, after, finished=False, deferred=True)
    until = min(after + _WINDOW, job.total - 1)
    if choice.ordinals is None:
        statement = statements.find_inputs_of_job(
            choice.job_id, statuses=choice.statuses, after=after, until=until, most=most
        )
    else:
        until = job.total - 1
        statement = statements.find_named_inputs(
            choice.job_id,
            ordinals=choice.ordinals,
            statuses=choice.statuses,
            after=after,
            most=most,
        )
    rows = (await connection.execute(statement)).all()
    cursor = rows[-1].ordinal if len(rows) == most else until
    return _Batch(
        [(row.job_id, row.ordinal) for row in rows],
        {job.id: job.kind},
        cursor,
        finished=cursor >= job.total - 1,
    )


async def _letters(
    connection: AsyncConnection, choice: LetterFilter, record: Row[Any], most: int
) -> _Batch:
    cursor = None if record.cursor is None else json.loads(record.cursor)
    after = cursor and (dt.datetime.fromisoformat(cursor[0]), UUID(cursor[1]), int(cursor[2]))
    rows = (
        await connection.execute(
            statements.find_letters(choice, requested_at=record.created_at, after=after, most=most)
        )
    ).all()
    locked = await connection.execute(
        lock_jobs(sorted({row.job_id for row in rows}), requested_at=record.created_at)
    )
    jobs = {job.id: job for job in locked}
    batch = _Batch([], {}, cursor, finished=len(rows) < most)
    for row in rows:
        job = jobs.get(row.job_id)
        if job is not None and not job.overruled:
            if job.deferred:
                # The place stays before it; what came before is gone from the DLQ by then.
                batch.finished, batch.deferred = False, True
                break
            batch.inputs.append((row.job_id, row.ordinal))
            batch.kinds[job.id] = job.kind
        batch.cursor = [row.died_at.isoformat(), str(row.job_id), row.ordinal]
    return batch


async def _reopen(
    connection: AsyncConnection,
    batch: _Batch,
    statuses: Sequence[str],
    chunks: Mapping[str, ChunkBounds],
    *,
    origin: str | None,
) -> int:
    if not batch.inputs:
        return 0
    statement = look_again(
        [job_id for job_id, _ in batch.inputs],
        [ordinal for _, ordinal in batch.inputs],
        statuses=statuses,
    )
    groups = _chunked((await connection.execute(statement)).all(), batch.kinds, chunks)
    if not groups:
        return 0
    reserved = [row.id for row in (await connection.execute(reserve_entry_ids(len(groups)))).all()]
    members = [
        (job_id, ordinal, entry_id)
        for entry_id, (job_id, ordinals) in zip(reserved, groups, strict=True)
        for ordinal in ordinals
    ]
    columns = (list(column) for column in zip(*members, strict=True))
    reopened = (await connection.execute(reopen_inputs(*columns))).all()
    assert len(reopened) == len(members), "their jobs are locked"
    await connection.execute(
        insert_follow_ups(
            {
                "ids": reserved,
                "job_ids": [job_id for job_id, _ in groups],
                "firsts": [ordinals[0] for _, ordinals in groups],
                "lasts": [ordinals[-1] for _, ordinals in groups],
                "counts": [len(ordinals) for _, ordinals in groups],
                "delays_seconds": [0.0] * len(groups),
                "origins": [origin] * len(groups),
            }
        )
    )
    return len(members)


def _chunked(
    rows: Sequence[Row[Any]], kinds: Mapping[UUID, str], chunks: Mapping[str, ChunkBounds]
) -> list[tuple[UUID, list[int]]]:
    """Share inputs out to entries; what lost its worker goes alone, as it may kill another."""
    groups: list[tuple[UUID, list[int]]] = []
    open_ = False
    for row in rows:
        size = chunk_size(None, chunks.get(kinds[row.job_id], ChunkBounds()))
        fits = (
            open_
            and groups[-1][0] == row.job_id
            and len(groups[-1][1]) < size
            and row.ordinal - groups[-1][1][0] < _SPAN
        )
        if fits and not row.lost_its_worker:
            groups[-1][1].append(row.ordinal)
        else:
            groups.append((row.job_id, [row.ordinal]))
        open_ = not row.lost_its_worker
    return groups
