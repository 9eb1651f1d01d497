"""Statements that pause, resume and end jobs, and that sweep their entries into place.

A control statement is one compare-and-set on the job row, so that it answers at once however
large the job is. It sets ``sweeping``: the sweeper then moves the job's entries, in batches, to
where its status wants them. Whoever holds an entry when a job is paused goes on; ``sweeping``
stays until it let go.

Locks are taken in the order of every writer: entries, then jobs. The sweeper, which needs the
job first, takes only entries that are free and so never waits for one while it holds the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from schema.statements.batch import Batch, job_forms

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy.sql.elements import TextClause

# What counts is the locked row t. Of j, which may be older, no WHERE may ask anything, and each
# column that a CHECK compares with the status is set from t (see ``settle``).
_TARGET = """
WITH target AS MATERIALIZED (
    SELECT *, succeeded + skipped + not_found + dlq + cancelled + expired AS final
    FROM job
    WHERE key = CAST(:key AS text)
      AND (CAST(:owner_id AS uuid) IS NULL OR owner_id = CAST(:owner_id AS uuid))
    FOR NO KEY UPDATE
), changed AS (
    UPDATE job j
"""
_ANSWER = """
    RETURNING j.id, j.status
)
SELECT t.id, t.key, t.status AS was, coalesce(c.status, t.status) AS status,
       c.id IS NOT NULL AS changed
FROM target t LEFT JOIN changed c ON c.id = t.id
"""

_PAUSE = sa.text(
    _TARGET
    + """
    SET status = 'PAUSED', finished_at = NULL, sweeping = true,
        control_version = j.control_version + 1
    FROM target t WHERE j.id = t.id AND t.status IN ('SUBMITTED', 'RUNNING')
"""
    + _ANSWER
)

# What ended while the job was paused may have been its last: then it ends here, by the rules of
# settling, having been RUNNING for no time.
_RESUME = sa.text(
    _TARGET
    + """
    SET status = CASE
            WHEN t.final = t.total
            THEN CASE WHEN t.dlq > 0 THEN 'FAILED' ELSE 'COMPLETED' END
            WHEN t.fail_fast AND t.dlq - t.forgiven > t.tolerated THEN 'FAILED'
            ELSE 'RUNNING' END,
        finished_at = CASE
            WHEN t.final = t.total OR (t.fail_fast AND t.dlq - t.forgiven > t.tolerated)
            THEN clock_timestamp() END,
        succeeded = t.succeeded, skipped = t.skipped, not_found = t.not_found, dlq = t.dlq,
        cancelled = t.cancelled, expired = t.expired, sweeping = true,
        control_version = j.control_version + 1
    FROM target t WHERE j.id = t.id AND t.status = 'PAUSED'
"""
    + _ANSWER
)

_CANCEL = sa.text(
    _TARGET
    + """
    SET status = 'CANCELLED', finished_at = clock_timestamp(), sweeping = true,
        control_version = j.control_version + 1
    FROM target t WHERE j.id = t.id AND t.status IN ('SUBMITTED', 'RUNNING', 'PAUSED')
"""
    + _ANSWER
)

# A job that somebody holds is passed over: it starts no input any more, and has its turn again.
_EXPIRE = job_forms(
    """
    SELECT o.id, o.id AS job_id FROM job o
    WHERE o.status IN ('SUBMITTED', 'RUNNING', 'PAUSED') AND o.expires_at <= now() AND {which}
    ORDER BY o.expires_at
    LIMIT CAST(:most AS integer)
    FOR NO KEY UPDATE SKIP LOCKED
""",
    """
WITH free AS MATERIALIZED ({target})
UPDATE job j
SET status = 'EXPIRED', finished_at = clock_timestamp(), sweeping = true,
    control_version = j.control_version + 1
FROM free f WHERE j.id = f.id
RETURNING j.id, j.key, j.correlation_id
""",
)

_SWEEPING = sa.text(
    """
SELECT id, key, status, control_version, correlation_id FROM job
WHERE sweeping AND id > CAST(:after AS uuid)
ORDER BY id
LIMIT CAST(:most AS integer)
"""
)

# What is due again after a pause was not late while it lasted. Its turn stays: it is owed that.
_MOVE = sa.text(
    """
WITH swept AS MATERIALIZED (
    SELECT id, CASE status WHEN 'PAUSED' THEN 'HELD' ELSE 'PENDING' END AS state,
           CASE status WHEN 'PAUSED' THEN '{PENDING,SENT}'::text[] ELSE '{HELD}' END AS misplaced
    FROM job
    WHERE id = CAST(:job_id AS uuid) AND sweeping AND status IN ('SUBMITTED', 'RUNNING', 'PAUSED')
    FOR NO KEY UPDATE
), free AS MATERIALIZED (
    SELECT o.id, s.state FROM outbox o CROSS JOIN swept s
    WHERE o.job_id = CAST(:job_id AS uuid) AND o.type = 'inputs' AND o.state = ANY(s.misplaced)
    ORDER BY o.first_ordinal
    LIMIT CAST(:most AS integer)
    FOR UPDATE OF o SKIP LOCKED
)
UPDATE outbox o
SET state = f.state, sent_at = NULL, relay_attempts = 0, locked_by = NULL, locked_until = NULL,
    available_at = CASE f.state WHEN 'PENDING' THEN greatest(o.available_at, now())
                                ELSE o.available_at END
FROM free f WHERE o.id = f.id
RETURNING o.id
"""
)

# Runs after ``lock_job``: only then are the counters of its snapshot those of the locked row.
# Deleting the entry is the strongest fence there is: no epoch matches it any more. Inputs that
# were settled while this waited for the job no longer carry the entry's id.
_END = sa.text(
    """
WITH swept AS MATERIALIZED (
    SELECT id, CASE status WHEN 'EXPIRED' THEN 'EXPIRED' ELSE 'CANCELLED' END AS status,
           CASE status WHEN 'EXPIRED' THEN 'Expired' WHEN 'FAILED' THEN 'FailFast'
                       ELSE 'Cancelled' END AS error_class,
           CASE status WHEN 'EXPIRED' THEN 'the job expired before this input was done'
                       WHEN 'FAILED' THEN 'the job failed fast: more than ' || tolerated
                                          || ' inputs died'
                       ELSE 'the job was cancelled' END AS error_message
    FROM job
    WHERE id = CAST(:job_id AS uuid) AND sweeping
      AND status IN ('CANCELLED', 'EXPIRED', 'FAILED')
), free AS MATERIALIZED (
    SELECT o.id, o.job_id, o.first_ordinal, o.last_ordinal, o.state, o.unfinished FROM outbox o
    WHERE o.job_id = CAST(:job_id AS uuid) AND o.type = 'inputs' AND EXISTS (SELECT FROM swept)
    ORDER BY o.first_ordinal
    LIMIT CAST(:most AS integer)
    FOR UPDATE OF o SKIP LOCKED
), batch AS MATERIALIZED (
    SELECT * FROM (
        SELECT *, sum(unfinished) OVER (ORDER BY first_ordinal, id) - unfinished AS inputs_before
        FROM free
    ) f
    WHERE inputs_before < CAST(:most_inputs AS integer)
), named AS MATERIALIZED (
    SELECT f.job_id, n.ordinal, f.id AS entry_id
    FROM batch f CROSS JOIN LATERAL (
        -- Apart, so that the key's range is read, whatever the planner thinks of its width.
        SELECT i.ordinal FROM input i
        WHERE i.job_id = f.job_id AND i.ordinal BETWEEN f.first_ordinal AND f.last_ordinal
          AND i.entry_id = f.id
        OFFSET 0
    ) n
), ended AS (
    UPDATE input i
    SET status = s.status, entry_id = NULL, settled_at = now(), error_class = s.error_class,
        error_message = s.error_message
    FROM named n JOIN swept s ON s.id = n.job_id
    WHERE i.job_id = n.job_id AND i.ordinal = n.ordinal AND i.entry_id = n.entry_id
      AND i.status IN ('PENDING', 'RETRY_WAIT')
    RETURNING i.status
), gone AS (
    DELETE FROM outbox o USING batch f WHERE o.id = f.id
), counted AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE status = 'CANCELLED')::integer AS cancelled,
           count(*) FILTER (WHERE status = 'EXPIRED')::integer AS expired
    FROM ended
), tallied AS (
    UPDATE job j
    SET cancelled = j.cancelled + c.cancelled, expired = j.expired + c.expired
    FROM swept s, counted c WHERE j.id = s.id AND c.cancelled + c.expired > 0
)
SELECT count(*)::integer AS entries, count(*) FILTER (WHERE state = 'CLAIMED')::integer AS running,
       (SELECT cancelled + expired FROM counted) AS inputs,
       count(*) = (SELECT count(*) FROM free)
           AND count(*) < CAST(:most AS integer) AS is_last
FROM batch
"""
)

_LOCK = sa.text("SELECT id FROM job WHERE id = CAST(:job_id AS uuid) FOR NO KEY UPDATE")

_LOCK_SWEEPING = sa.text(
    """
SELECT id FROM job
WHERE id = CAST(:job_id AS uuid) AND sweeping
  AND control_version = CAST(:control_version AS integer)
FOR UPDATE
"""
)

# PAUSED waits for claims in hand, too: what they give back must find its place.
_CLEAR = sa.text(
    """
UPDATE job j SET sweeping = false
WHERE j.id = CAST(:job_id AS uuid) AND j.sweeping
  AND j.control_version = CAST(:control_version AS integer)
  AND NOT EXISTS (
      SELECT FROM outbox o
      WHERE o.job_id = j.id AND o.type = 'inputs'
        AND CASE WHEN j.status = 'PAUSED' THEN o.state NOT IN ('HELD', 'PARKED')
                 WHEN j.status IN ('SUBMITTED', 'RUNNING') THEN o.state = 'HELD'
                 ELSE true END)
RETURNING j.id
"""
)


def pause_job(key: str, *, owner_id: UUID | None) -> TextClause:
    """Pause a job that is active: (id, key, was, status, changed), or no row: no such job.

    Pausing it again changes nothing; where ``status`` is another, it has ended.
    """
    return _PAUSE.bindparams(key=key, owner_id=owner_id)


def resume_job(key: str, *, owner_id: UUID | None) -> TextClause:
    """Resume a job that is paused: (id, key, was, status, changed), or no row: no such job.

    It is RUNNING then, or has ended if there was nothing left to do. Resuming an active one
    changes nothing.
    """
    return _RESUME.bindparams(key=key, owner_id=owner_id)


def cancel_job(key: str, *, owner_id: UUID | None) -> TextClause:
    """Cancel a job that has not ended: (id, key, was, status, changed), or no row: no such job.

    No input starts any more once this commits; what is unfinished is swept to CANCELLED.
    """
    return _CANCEL.bindparams(key=key, owner_id=owner_id)


def expire_jobs(*, most: int) -> Batch:
    """End jobs whose time has passed and that are free: rows of (id, key, correlation_id)."""
    return Batch.of(_EXPIRE, {"most": most})


def find_sweeping_jobs(*, after: UUID, most: int) -> TextClause:
    """Find jobs to sweep by id: (id, key, status, control_version, correlation_id)."""
    return _SWEEPING.bindparams(after=after, most=most)


def move_entries(job_id: UUID, *, most: int) -> TextClause:
    """Move free entries of a paused or active job into place, as its status is now: (id)."""
    return _MOVE.bindparams(job_id=job_id, most=most)


def lock_job(job_id: UUID) -> TextClause:
    """Lock a job, for the statements that follow in the same unit."""
    return _LOCK.bindparams(job_id=job_id)


def end_entries(job_id: UUID, *, most: int, most_inputs: int) -> TextClause:
    """End free entries of an ended job and their inputs: one row (entries, running, inputs,
    is_last).

    Up to ``most`` entries, of ``most_inputs`` and what the last of them has more. ``is_last``:
    no free entry was left. After ``lock_job``, in its unit.
    """
    return _END.bindparams(job_id=job_id, most=most, most_inputs=most_inputs)


def lock_sweeping_job(job_id: UUID, control_version: int) -> TextClause:
    """Lock a job that is still swept under this version, so that no entry of it appears."""
    return _LOCK_SWEEPING.bindparams(job_id=job_id, control_version=control_version)


def clear_sweeping(job_id: UUID, control_version: int) -> TextClause:
    """End the sweeping if every entry is in place; after ``lock_sweeping_job``, in its unit.

    Only a statement of its own sees what was committed while the lock was waited for.
    """
    return _CLEAR.bindparams(job_id=job_id, control_version=control_version)
