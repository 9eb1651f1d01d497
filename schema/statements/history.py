"""Statements that tell the whole story of one input, across all its generations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy.sql.elements import TextClause

# Nobody consumes the kind of job ``j`` now, and when somebody did: of the latter the database keeps
# no more than what runs have written, in ``kind_pace p``, on the job and as failed attempts.
KIND_IS_IDLE = """NOT EXISTS (SELECT FROM outbox c WHERE c.state = 'CLAIMED'
                   AND c.locked_until > now() AND c.kind = j.kind)"""
# Half a minute: sooner a consumer may be on its way.
IS_LONG_DUE = "e.available_at < now() - interval '30 seconds'"


def kind_ran_at(ordinal: str) -> str:
    """Give the time at which the kind of job ``j`` was last worked on, as far as is known."""
    return f"""greatest(p.measured_at, j.started_at, (
           SELECT max(a.ended_at) FROM attempt a WHERE a.job_id = j.id AND a.ordinal = {ordinal}
       ))"""


_INPUT = sa.text(
    f"""
SELECT s.job_id, s.job_key, j.status AS job_status, j.kind, w.name AS owner, s.correlation_id,
       s.ordinal, s.state, s.attempts, j.max_attempts, s.generation, s.body::text AS body,
       s.result::text AS result, s.reused, s.elapsed_ms, s.settled_at, s.error_class,
       s.error_message,
       e.id AS entry_id, e.state AS entry_state, e.epoch, e.created_at AS entry_created_at,
       e.sent_at, e.available_at, e.locked_by AS worker, e.locked_until,
       e.locked_until > now() AS lease_is_live, e.parked_reason,
       d.died_at, d.fingerprint, j.requested_at, j.started_at, j.expires_at,
       CASE WHEN e.state IN ('PENDING', 'SENT') AND {IS_LONG_DUE}
            THEN {KIND_IS_IDLE} ELSE false END AS kind_is_idle,
       {kind_ran_at("s.ordinal")} AS kind_ran_at
FROM job j
JOIN input_state s ON s.job_id = j.id AND s.ordinal = CAST(:ordinal AS integer)
JOIN owner w ON w.id = j.owner_id
LEFT JOIN outbox e ON e.id = s.entry_id
LEFT JOIN dead_letter d ON d.job_id = j.id AND d.ordinal = s.ordinal
LEFT JOIN kind_pace p ON p.kind = j.kind
WHERE j.key = CAST(:key AS text)
  AND (CAST(:owner_id AS uuid) IS NULL OR j.owner_id = CAST(:owner_id AS uuid))
"""
)

_ATTEMPTS = sa.text(
    """
SELECT generation, attempt, status, worker, error_class, error_message, elapsed_ms,
       ended_at - elapsed_ms * interval '1 millisecond' AS started_at, ended_at, next_at
FROM attempt
WHERE job_id = CAST(:job_id AS uuid) AND ordinal = CAST(:ordinal AS integer)
ORDER BY generation, attempt
LIMIT CAST(:most AS integer)
"""
)


def find_input(key: str, ordinal: int, *, owner_id: UUID | None) -> TextClause:
    """Find one input with all that is known of it now, or no row.

    The job: job_id, job_key, job_status, kind, owner, correlation_id, max_attempts,
    requested_at, started_at, expires_at. The input: ordinal, state, attempts, generation, body,
    result, reused, elapsed_ms, settled_at, error_class, error_message. Its entry, null once it is
    final: entry_id, entry_state, epoch, entry_created_at, sent_at, available_at (next due),
    worker, locked_until, lease_is_live, parked_reason. In the DLQ: died_at, fingerprint.
    Its kind: kind_is_idle (the entry is due for half a minute, and no consumer has a lease of any
    of this kind), kind_ran_at (when one last worked on it, as far as is known; null: never).
    """
    return _INPUT.bindparams(key=key, ordinal=ordinal, owner_id=owner_id)


def list_attempts(job_id: UUID, ordinal: int, *, most: int) -> TextClause:
    """List failed attempts of all generations, in order; a success is on the input alone.

    Rows of (generation, attempt, status, worker, error_class, error_message, elapsed_ms,
    started_at (null if it was never timed), ended_at, next_at).
    """
    return _ATTEMPTS.bindparams(job_id=job_id, ordinal=ordinal, most=most)
