"""Statements that remove what is older than its retention: small batches, by index, SKIP LOCKED.

A job goes in steps, as it may be large: it is marked under a lock on its row, which a redrive
honours; its inputs go from the first ordinal on, with their history; once there are none, and none
of its events, goes the job. Only jobs that are final, swept, without entries and without younger
letters are marked. Events that nobody sends are no reason to stay; they go with the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from schema.statements.batch import Batch, job_forms

if TYPE_CHECKING:
    from sqlalchemy.sql.elements import TextClause

_MARK = job_forms(
    """
    SELECT o.id, o.id AS job_id FROM job o
    WHERE o.finished_at < now() - CAST(:days AS double precision) * interval '1 day'
      AND o.pruned_at IS NULL AND NOT o.sweeping
      AND NOT EXISTS (SELECT FROM outbox e WHERE e.job_id = o.id
                      AND (e.type = 'inputs' OR CAST(:events_are_sent AS boolean)))
      AND NOT EXISTS (SELECT FROM dead_letter d WHERE d.job_id = o.id
                      AND d.died_at >= now() - CAST(:days AS double precision) * interval '1 day')
      AND {which}
    ORDER BY o.finished_at
    LIMIT CAST(:most AS integer)
    FOR UPDATE OF o SKIP LOCKED
""",
    """
WITH old AS MATERIALIZED ({target})
UPDATE job j SET pruned_at = now() FROM old WHERE j.id = old.id
RETURNING j.id
""",
)

_PRUNE_JOBS = sa.text(
    """
WITH target AS MATERIALIZED (
    SELECT id, total FROM job WHERE pruned_at IS NOT NULL
    ORDER BY pruned_at, id
    LIMIT CAST(:most_jobs AS integer)
    FOR UPDATE SKIP LOCKED
), picked AS MATERIALIZED (
    SELECT i.job_id, i.ordinal FROM target t JOIN input i ON i.job_id = t.id
    ORDER BY i.job_id, i.ordinal
    LIMIT CAST(:most_inputs AS integer)
), inputs_gone AS (
    DELETE FROM input i USING picked p WHERE i.job_id = p.job_id AND i.ordinal = p.ordinal
), attempts_gone AS (
    DELETE FROM attempt a USING picked p WHERE a.job_id = p.job_id AND a.ordinal = p.ordinal
), letters_gone AS (
    DELETE FROM dead_letter d USING picked p WHERE d.job_id = p.job_id AND d.ordinal = p.ordinal
), events AS MATERIALIZED (
    SELECT o.id FROM target t JOIN outbox o ON o.job_id = t.id
    WHERE o.type = 'event'
    LIMIT CAST(:most_inputs AS integer)
    FOR UPDATE OF o SKIP LOCKED
), events_gone AS (
    DELETE FROM outbox o USING events e WHERE o.id = e.id
), empty AS MATERIALIZED (
    SELECT t.id FROM target t LEFT JOIN picked p ON p.job_id = t.id AND p.ordinal = t.total - 1
    WHERE (p.job_id IS NOT NULL OR NOT EXISTS (SELECT FROM input i WHERE i.job_id = t.id))
      AND NOT EXISTS (SELECT FROM outbox o WHERE o.job_id = t.id)
), jobs_gone AS (
    DELETE FROM job j USING empty e WHERE j.id = e.id
)
SELECT (SELECT count(*)::integer FROM picked) AS inputs,
       (SELECT count(*)::integer FROM events) AS events,
       (SELECT count(*)::integer FROM empty) AS jobs
"""
)

_PRUNE_ATTEMPTS = sa.text(
    """
WITH old AS MATERIALIZED (
    SELECT a.job_id, a.ordinal, a.generation, a.attempt
    FROM attempt a JOIN job j ON j.id = a.job_id
    WHERE a.ended_at < now() - CAST(:days AS double precision) * interval '1 day'
      AND j.finished_at IS NOT NULL
    ORDER BY a.ended_at
    LIMIT CAST(:most AS integer)
    FOR UPDATE OF a SKIP LOCKED
)
DELETE FROM attempt a USING old o
WHERE (a.job_id, a.ordinal, a.generation, a.attempt)
    = (o.job_id, o.ordinal, o.generation, o.attempt)
RETURNING a.ordinal
"""
)

_PRUNE_MESSAGES = sa.text(
    """
WITH old AS MATERIALIZED (
    SELECT id FROM parked_message
    WHERE resolved_at < now() - CAST(:days AS double precision) * interval '1 day'
    ORDER BY resolved_at
    LIMIT CAST(:most AS integer)
    FOR UPDATE SKIP LOCKED
)
DELETE FROM parked_message p USING old o WHERE p.id = o.id
RETURNING p.id
"""
)

_PRUNE_REDRIVES = sa.text(
    """
WITH old AS MATERIALIZED (
    SELECT id FROM redrive
    WHERE finished_at < now() - CAST(:days AS double precision) * interval '1 day'
    ORDER BY finished_at
    LIMIT CAST(:most AS integer)
    FOR UPDATE SKIP LOCKED
)
DELETE FROM redrive r USING old o WHERE r.id = o.id
RETURNING r.id
"""
)


def mark_prunable_jobs(days: float, *, most: int, events_are_sent: bool) -> Batch:
    """Mark jobs that ended more than ``days`` ago and may go: rows of (id)."""
    return Batch.of(_MARK, {"days": days, "most": most, "events_are_sent": events_are_sent})


def prune_marked_jobs(*, most_jobs: int, most_inputs: int) -> TextClause:
    """Remove inputs and events of marked jobs, and the jobs left without any.

    One row of (inputs, events, jobs).
    """
    return _PRUNE_JOBS.bindparams(most_jobs=most_jobs, most_inputs=most_inputs)


def prune_attempts(days: float, *, most: int) -> TextClause:
    """Remove failed attempts of ended jobs that ended more than ``days`` ago: a row each."""
    return _PRUNE_ATTEMPTS.bindparams(days=days, most=most)


def prune_messages(days: float, *, most: int) -> TextClause:
    """Remove kept messages that were resolved more than ``days`` ago: rows of (id)."""
    return _PRUNE_MESSAGES.bindparams(days=days, most=most)


def prune_redrives(days: float, *, most: int) -> TextClause:
    """Remove records of redrives that finished more than ``days`` ago: rows of (id)."""
    return _PRUNE_REDRIVES.bindparams(days=days, most=most)
