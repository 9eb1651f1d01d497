"""Statements of one batch of a redrive: lock the jobs, look again, take the inputs back.

With the jobs locked nothing else moves a final input, so a second redrive of the same inputs, a
cancel or a pause comes either wholly before a batch or wholly after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy.sql.elements import TextClause

# Overruled: the job was ended, or ended itself by its policy, after the redrive was asked for.
# Deferred: it was so before, and its inputs are still being swept.
_LOCK_JOBS = sa.text(
    """
SELECT id, kind, total,
       pruned_at IS NOT NULL OR coalesce(
           finished_at > CAST(:requested_at AS timestamptz)
           AND (status IN ('CANCELLED', 'EXPIRED')
                OR (status = 'FAILED' AND fail_fast AND dlq - forgiven > tolerated)),
           false) AS overruled,
       sweeping AND status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED') AS deferred
FROM job WHERE id = ANY(CAST(:job_ids AS uuid[]))
ORDER BY id
FOR NO KEY UPDATE
"""
)

_STILL = sa.text(
    """
SELECT i.job_id, i.ordinal, coalesce(i.error_class = 'WorkerLost', false) AS lost_its_worker
FROM unnest(CAST(:job_ids AS uuid[]), CAST(:ordinals AS integer[])) AS c (job_id, ordinal)
JOIN input i ON i.job_id = c.job_id AND i.ordinal = c.ordinal
WHERE i.status = ANY(CAST(:statuses AS text[]))
  AND i.generation < CAST(:most_generations AS integer)
ORDER BY i.job_id, i.ordinal
"""
)
# What the column holds: an input that was redriven so often goes no further.
_MOST_GENERATIONS = 32_767

# A job that had ended runs again: an expiry that has passed would end it at once, so it is
# dropped. What stays in the DLQ is forgiven: it lay there when somebody decided to go on.
_REOPEN = sa.text(
    """
WITH picked AS MATERIALIZED (
    SELECT p.job_id, p.ordinal, p.entry_id, i.status
    FROM unnest(CAST(:job_ids AS uuid[]), CAST(:ordinals AS integer[]),
                CAST(:entry_ids AS bigint[])) AS p (job_id, ordinal, entry_id)
    JOIN input i ON i.job_id = p.job_id AND i.ordinal = p.ordinal
    WHERE i.status IN ('DLQ', 'NOT_FOUND', 'CANCELLED', 'EXPIRED')
), written AS (
    UPDATE input i
    SET status = 'PENDING', attempts = 0, generation = i.generation + 1, entry_id = p.entry_id,
        result = NULL, reused = NULL, elapsed_ms = NULL, settled_at = NULL, error_class = NULL,
        error_message = NULL
    FROM picked p
    WHERE i.job_id = p.job_id AND i.ordinal = p.ordinal AND i.status = p.status
    RETURNING p.job_id, p.ordinal, p.status
), forgotten AS (
    DELETE FROM dead_letter d USING written w
    WHERE w.status = 'DLQ' AND d.job_id = w.job_id AND d.ordinal = w.ordinal
), per_job AS MATERIALIZED (
    SELECT job_id, count(*) FILTER (WHERE status = 'DLQ')::integer AS dlq,
           count(*) FILTER (WHERE status = 'NOT_FOUND')::integer AS not_found,
           count(*) FILTER (WHERE status = 'CANCELLED')::integer AS cancelled,
           count(*) FILTER (WHERE status = 'EXPIRED')::integer AS expired
    FROM written GROUP BY job_id
), reopened AS (
    UPDATE job j
    SET dlq = j.dlq - d.dlq, not_found = j.not_found - d.not_found,
        cancelled = j.cancelled - d.cancelled, expired = j.expired - d.expired,
        forgiven = CASE WHEN j.finished_at IS NULL THEN greatest(0, j.forgiven - d.dlq)
                        ELSE j.dlq - d.dlq END,
        error_message = CASE WHEN j.dlq = d.dlq THEN NULL ELSE j.error_message END,
        status = CASE WHEN j.finished_at IS NULL THEN j.status ELSE 'RUNNING' END,
        expires_at = CASE WHEN j.finished_at IS NOT NULL AND j.expires_at <= now() THEN NULL
                          ELSE j.expires_at END,
        control_version = j.control_version + (j.finished_at IS NOT NULL)::integer,
        finished_at = NULL
    FROM per_job d WHERE j.id = d.job_id
)
SELECT job_id, ordinal FROM written
"""
)


def lock_jobs(job_ids: Sequence[UUID], *, requested_at: dt.datetime) -> TextClause:
    """Lock jobs: rows of (id, kind, total, overruled, deferred)."""
    return _LOCK_JOBS.bindparams(job_ids=list(job_ids), requested_at=requested_at)


def look_again(
    job_ids: Sequence[UUID], ordinals: Sequence[int], *, statuses: Sequence[str]
) -> TextClause:
    """Of inputs whose jobs are locked, give those that still may go, in order.

    An input that was redriven 32,767 times may not: its generations are used up.
    Rows of (job_id, ordinal, lost_its_worker).
    """
    return _STILL.bindparams(
        job_ids=list(job_ids),
        ordinals=list(ordinals),
        statuses=list(statuses),
        most_generations=_MOST_GENERATIONS,
    )


def reopen_inputs(
    job_ids: Sequence[UUID], ordinals: Sequence[int], entry_ids: Sequence[int]
) -> TextClause:
    """Take final inputs of locked jobs back into work, and reopen the jobs: (job_id, ordinal).

    ``insert_follow_ups`` must then make the entries, in the same unit.
    """
    return _REOPEN.bindparams(
        job_ids=list(job_ids), ordinals=list(ordinals), entry_ids=list(entry_ids)
    )
