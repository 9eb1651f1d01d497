"""Statements of the maintenance services: recount idle jobs, keep messages, limit waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy.sql.elements import TextClause

# Work is over where no entry is left: found through the small outbox, not by scanning inputs.
_IDLE_JOBS = sa.text(
    """
SELECT j.id, j.key, j.requested_at, j.correlation_id FROM job j
WHERE j.status = 'RUNNING'
  AND j.requested_at < now() - CAST(:quiet_seconds AS double precision) * interval '1 second'
  AND NOT EXISTS (SELECT FROM outbox o WHERE o.job_id = j.id AND o.type = 'inputs')
  AND (CAST(:after_at AS timestamptz) IS NULL
       OR (j.requested_at, j.id) > (CAST(:after_at AS timestamptz), CAST(:after_id AS uuid)))
ORDER BY j.requested_at, j.id
LIMIT CAST(:most AS integer)
"""
)

_RECOUNT = sa.text(
    """
WITH target AS MATERIALIZED (
    SELECT id, status, total FROM job
    WHERE id = CAST(:job_id AS uuid) AND status = 'RUNNING' FOR NO KEY UPDATE
), rows AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE status = 'SUCCEEDED')::integer AS succeeded,
           count(*) FILTER (WHERE status = 'SKIPPED')::integer AS skipped,
           count(*) FILTER (WHERE status = 'NOT_FOUND')::integer AS not_found,
           count(*) FILTER (WHERE status = 'DLQ')::integer AS dlq,
           count(*) FILTER (WHERE status = 'CANCELLED')::integer AS cancelled,
           count(*) FILTER (WHERE status = 'EXPIRED')::integer AS expired,
           count(*) FILTER (WHERE NOT reused)::integer AS files_generated,
           count(*) FILTER (WHERE reused)::integer AS files_reused,
           count(*) FILTER (WHERE status IN ('PENDING', 'RETRY_WAIT'))::integer AS unfinished
    FROM input WHERE job_id = (SELECT id FROM target)
)
UPDATE job j
SET succeeded = r.succeeded, skipped = r.skipped, not_found = r.not_found, dlq = r.dlq,
    cancelled = r.cancelled, expired = r.expired, files_generated = r.files_generated,
    files_reused = r.files_reused, finished_at = now(),
    status = CASE WHEN r.dlq > 0 THEN 'FAILED' ELSE 'COMPLETED' END
FROM target t, rows r
WHERE j.id = t.id AND j.status = t.status AND r.unfinished = 0
RETURNING j.id, j.key, j.status, j.correlation_id
"""
)

_PARK_MESSAGE = sa.text(
    """
INSERT INTO parked_message (queue, message_id, reason, body, attributes)
SELECT CAST(:queue AS text), p.message_id, p.reason, p.body, p.attributes
FROM unnest(CAST(:message_ids AS text[]), CAST(:reasons AS text[]), CAST(:bodies AS text[]),
            CAST(:attributes AS jsonb[])) AS p (message_id, reason, body, attributes)
ON CONFLICT (message_id) DO NOTHING
"""
)


def find_idle_jobs(
    *, quiet_seconds: float, most: int, after: tuple[dt.datetime, UUID] | None = None
) -> TextClause:
    """Find running jobs without a live entry, requested at least ``quiet_seconds`` ago.

    Gives (id, key, requested_at, correlation_id), oldest first, from the one behind ``after`` on.
    """
    after_at, after_id = after or (None, None)
    return _IDLE_JOBS.bindparams(
        quiet_seconds=quiet_seconds, most=most, after_at=after_at, after_id=after_id
    )


def recount_and_finish(job_id: UUID) -> TextClause:
    """Set a running job's counters from its rows and end it, unless inputs are unfinished."""
    return _RECOUNT.bindparams(job_id=job_id)


def park_messages(
    queue: str,
    *,
    message_ids: Sequence[str],
    reasons: Sequence[str],
    bodies: Sequence[str],
    attributes: Sequence[str],
) -> TextClause:
    """Keep messages that this system cannot read, each with its reason, once."""
    return _PARK_MESSAGE.bindparams(
        queue=queue,
        message_ids=list(message_ids),
        reasons=list(reasons),
        bodies=list(bodies),
        attributes=list(attributes),
    )
