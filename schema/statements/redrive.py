"""Statements that record redrives and find what they match, in bounded batches.

One batch is one transaction: it locks the redrive, finds candidates, locks their jobs in id
order, looks again which of them still may go (``reopen``), moves these and notes its progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from schema.statements.dead_letters import SCANS, LetterFilter

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy.sql.elements import TextClause

_INSERT = sa.text(
    """
INSERT INTO redrive (id, owner_id, requested_by, source, filter, origin)
VALUES (CAST(:id AS uuid), CAST(:owner_id AS uuid), CAST(:requested_by AS text),
        CAST(:source AS text), CAST(:filter AS jsonb), CAST(:origin AS text))
RETURNING id, owner_id, created_at, source, filter::text AS filter, cursor::text AS cursor,
          matched, redriven, origin
"""
)

_TAKE = sa.text(
    """
SELECT id, owner_id, created_at, source, filter::text AS filter, cursor::text AS cursor,
       matched, redriven, origin
FROM redrive
WHERE finished_at IS NULL AND id > CAST(:after AS uuid)
ORDER BY id
LIMIT 1
FOR UPDATE SKIP LOCKED
"""
)

_NOTE = sa.text(
    """
UPDATE redrive
SET cursor = CAST(:cursor AS jsonb), matched = matched + CAST(:matched AS integer),
    redriven = redriven + CAST(:redriven AS integer),
    stopped_reason = CAST(:stopped_reason AS text),
    finished_at = CASE WHEN CAST(:finished AS boolean) THEN clock_timestamp() END
WHERE id = CAST(:id AS uuid) AND finished_at IS NULL
RETURNING matched, redriven
"""
)

_FIND = sa.text(
    """
SELECT r.id, w.name AS owner, r.requested_by, r.created_at, r.source, r.filter::text AS filter,
       r.matched, r.redriven, r.stopped_reason, r.finished_at
FROM redrive r LEFT JOIN owner w ON w.id = r.owner_id
WHERE r.id = CAST(:id AS uuid)
  AND (CAST(:owner_id AS uuid) IS NULL OR r.owner_id = CAST(:owner_id AS uuid))
"""
)

_OF_JOB = sa.text(
    """
SELECT job_id, ordinal FROM input
WHERE job_id = CAST(:job_id AS uuid) AND ordinal > CAST(:after AS integer)
  AND ordinal <= CAST(:until AS integer) AND status = ANY(CAST(:statuses AS text[]))
ORDER BY ordinal
LIMIT CAST(:most AS integer)
"""
)

_NAMED = sa.text(
    """
SELECT i.job_id, i.ordinal FROM input i
WHERE i.job_id = CAST(:job_id AS uuid) AND i.ordinal = ANY(CAST(:ordinals AS integer[]))
  AND i.ordinal > CAST(:after AS integer) AND i.status = ANY(CAST(:statuses AS text[]))
ORDER BY i.ordinal
LIMIT CAST(:most AS integer)
"""
)

_COUNT_NAMED = sa.text(
    """
SELECT count(*)::integer AS many FROM input i
WHERE i.job_id = CAST(:job_id AS uuid) AND i.ordinal = ANY(CAST(:ordinals AS integer[]))
  AND i.status = ANY(CAST(:statuses AS text[]))
"""
)

# The counters say it without looking at any input.
_COUNT_OF_JOB = sa.text(
    """
SELECT CASE WHEN 'DLQ' = ANY(CAST(:statuses AS text[])) THEN dlq ELSE 0 END
     + CASE WHEN 'NOT_FOUND' = ANY(CAST(:statuses AS text[])) THEN not_found ELSE 0 END
     + CASE WHEN 'CANCELLED' = ANY(CAST(:statuses AS text[])) THEN cancelled ELSE 0 END
     + CASE WHEN 'EXPIRED' = ANY(CAST(:statuses AS text[])) THEN expired ELSE 0 END AS many
FROM job WHERE id = CAST(:job_id AS uuid)
"""
)

_LETTER = """
SELECT d.job_id, d.ordinal, d.died_at FROM {scan}
  AND d.died_at < CAST(:requested_at AS timestamptz)
  AND (d.died_at, d.job_id, d.ordinal)
    > (coalesce(CAST(:after_time AS timestamptz), '-infinity'),
       coalesce(CAST(:after_job AS uuid), '00000000-0000-0000-0000-000000000000'),
       coalesce(CAST(:after_ordinal AS integer), -1))
ORDER BY d.died_at, d.job_id, d.ordinal
LIMIT CAST(:most AS integer)
"""
_LETTERS = {name: sa.text(_LETTER.format(scan=scan)) for name, scan in SCANS.items()}


def insert_redrive(
    id: UUID,  # noqa: A002 - the column's name
    *,
    owner_id: UUID | None,
    requested_by: str,
    source: str,
    filter: str,  # noqa: A002 - the column's name
    origin: str | None = None,
) -> TextClause:
    """Record a redrive that was asked for; returns it as ``take_redrive`` does."""
    return _INSERT.bindparams(
        id=id,
        owner_id=owner_id,
        requested_by=requested_by,
        source=source,
        filter=filter,
        origin=origin,
    )


def take_redrive(*, after: UUID) -> TextClause:
    """Lock the next open redrive by id that nobody works on.

    (id, owner_id, created_at, source, filter, cursor, matched, redriven, origin), or no row.
    """
    return _TAKE.bindparams(after=after)


def note_progress(
    id: UUID,  # noqa: A002 - the column's name
    *,
    cursor: str | None,
    matched: int,
    redriven: int,
    finished: bool,
    stopped_reason: str | None,
) -> TextClause:
    """Write down how far a redrive has come: its totals (matched, redriven)."""
    return _NOTE.bindparams(
        id=id,
        cursor=cursor,
        matched=matched,
        redriven=redriven,
        finished=finished,
        stopped_reason=stopped_reason,
    )


def find_redrive(id: UUID, *, owner_id: UUID | None) -> TextClause:  # noqa: A002
    """Find a redrive: (id, owner, requested_by, created_at, source, filter, matched, redriven,
    stopped_reason, finished_at).
    """
    return _FIND.bindparams(id=id, owner_id=owner_id)


def find_inputs_of_job(
    job_id: UUID, *, statuses: Sequence[str], after: int, until: int, most: int
) -> TextClause:
    """Find inputs of these statuses with ordinals in (after, until]: (job_id, ordinal)."""
    return _OF_JOB.bindparams(
        job_id=job_id, statuses=list(statuses), after=after, until=until, most=most
    )


def find_named_inputs(
    job_id: UUID, *, ordinals: Sequence[int], statuses: Sequence[str], after: int, most: int
) -> TextClause:
    """Find those of the named inputs, after one, that have these statuses: (job_id, ordinal)."""
    return _NAMED.bindparams(
        job_id=job_id, ordinals=list(ordinals), statuses=list(statuses), after=after, most=most
    )


def count_redrivable(
    job_id: UUID, *, statuses: Sequence[str], ordinals: Sequence[int] | None
) -> TextClause:
    """Say how many inputs a redrive by job would match now: (many)."""
    if ordinals is None:
        return _COUNT_OF_JOB.bindparams(job_id=job_id, statuses=list(statuses))
    return _COUNT_NAMED.bindparams(job_id=job_id, statuses=list(statuses), ordinals=list(ordinals))


def find_letters(
    which: LetterFilter,
    *,
    requested_at: dt.datetime,
    after: tuple[dt.datetime, UUID, int] | None,
    most: int,
) -> TextClause:
    """Find letters that died before the request, oldest first: (job_id, ordinal, died_at)."""
    time, job_id, ordinal = after or (None, None, None)
    return _LETTERS[which.scan()].bindparams(
        **which.values(),
        requested_at=requested_at,
        after_time=time,
        after_job=job_id,
        after_ordinal=ordinal,
        most=most,
    )
