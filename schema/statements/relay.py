"""Statements of the relay: lock due entries, then write down which of them were sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.sql.elements import TextClause

_TAKE = """
    ORDER BY o.priority DESC, o.available_at, o.id
    LIMIT CAST(:most AS integer)
    FOR UPDATE OF o SKIP LOCKED
)
UPDATE outbox o
SET locked_by = CAST(:token AS text), relay_attempts = o.relay_attempts + 1,
    locked_until = now() + CAST(:lock_seconds AS double precision) * interval '1 second'
FROM target WHERE o.id = target.id
RETURNING o.id, o.type, o.job_id, o.owner_id, o.kind, o.payload::text AS payload,
          o.priority, o.available_at, o.relay_attempts,
          o.correlation_id, o.traceparent, o.tracestate, o.baggage
"""

_LOCK = sa.text(
    """
WITH target AS MATERIALIZED (
    SELECT o.id
    FROM outbox o JOIN job j ON j.id = o.job_id
    WHERE o.state = 'PENDING' AND o.available_at <= now()
      AND o.type = ANY(CAST(:types AS text[]))
      AND (o.locked_until IS NULL OR o.locked_until < now())
      AND (o.type = 'event' OR (j.status IN ('SUBMITTED', 'RUNNING')
                                AND (j.expires_at IS NULL OR j.expires_at > now())))
"""
    + _TAKE
)

# Through the index on due events alone: who relays no inputs never looks at their entries.
_LOCK_EVENTS = sa.text(
    """
WITH target AS MATERIALIZED (
    SELECT o.id
    FROM outbox o
    WHERE o.state = 'PENDING' AND o.type = 'event' AND o.available_at <= now()
      AND (o.locked_until IS NULL OR o.locked_until < now())
"""
    + _TAKE
)

# Consumers claim the same rows meanwhile, and wait for them as this does: all in id order.
_MARK_SENT = sa.text(
    """
WITH target AS MATERIALIZED (
    SELECT id FROM outbox
    WHERE id = ANY(CAST(:entry_ids AS bigint[])) AND state = 'PENDING'
      AND locked_by = CAST(:token AS text) AND type = 'inputs'
    ORDER BY id
    FOR UPDATE
)
UPDATE outbox o
SET state = 'SENT', sent_at = now(), locked_by = NULL, locked_until = NULL, relay_attempts = 0
FROM target WHERE o.id = target.id
RETURNING o.id
"""
)

_DROP_EVENTS = sa.text(
    """
DELETE FROM outbox
WHERE id = ANY(CAST(:entry_ids AS bigint[])) AND state = 'PENDING'
  AND locked_by = CAST(:token AS text) AND type = 'event'
RETURNING id
"""
)

_BACK_OFF = sa.text(
    """
UPDATE outbox o
SET locked_by = NULL, locked_until = NULL,
    available_at = now() + r.delay_seconds * interval '1 second'
FROM unnest(CAST(:entry_ids AS bigint[]), CAST(:delays_seconds AS double precision[]))
     AS r (id, delay_seconds)
WHERE o.id = r.id AND o.state = 'PENDING' AND o.locked_by = CAST(:token AS text)
RETURNING o.id
"""
)

_PARK = sa.text(
    """
UPDATE outbox o
SET state = 'PARKED', parked_reason = r.reason, locked_by = NULL, locked_until = NULL
FROM unnest(CAST(:entry_ids AS bigint[]), CAST(:reasons AS text[])) AS r (id, reason)
WHERE o.id = r.id AND o.state = 'PENDING' AND o.locked_by = CAST(:token AS text)
RETURNING o.id
"""
)

_RESEND = sa.text(
    """
WITH overdue AS MATERIALIZED (
    SELECT id FROM outbox
    WHERE state = 'SENT'
      AND sent_at < now() - CAST(:after_seconds AS double precision) * interval '1 second'
    ORDER BY sent_at
    LIMIT CAST(:most AS integer)
    FOR UPDATE SKIP LOCKED
)
UPDATE outbox o SET state = 'PENDING', sent_at = NULL, relay_attempts = 0
FROM overdue WHERE o.id = overdue.id
RETURNING o.id, o.job_id, o.correlation_id
"""
)


def lock_due(token: str, lock_seconds: float, *, types: Sequence[str], most: int) -> TextClause:
    """Lock up to ``most`` due entries for sending, best first; a stale lock is no lock."""
    if list(types) == ["event"]:
        return _LOCK_EVENTS.bindparams(token=token, lock_seconds=lock_seconds, most=most)
    return _LOCK.bindparams(token=token, lock_seconds=lock_seconds, types=list(types), most=most)


def mark_sent(token: str, entry_ids: Sequence[int]) -> TextClause:
    """Mark entries SENT that this token still locks and no consumer has claimed meanwhile."""
    return _MARK_SENT.bindparams(token=token, entry_ids=list(entry_ids))


def delete_published_events(token: str, entry_ids: Sequence[int]) -> TextClause:
    """Delete event entries that were published: there is nothing left to do for them."""
    return _DROP_EVENTS.bindparams(token=token, entry_ids=list(entry_ids))


def back_off(token: str, entry_ids: Sequence[int], delays_seconds: Sequence[float]) -> TextClause:
    """Unlock entries that could not be sent now; each is due again after its delay."""
    return _BACK_OFF.bindparams(
        token=token, entry_ids=list(entry_ids), delays_seconds=list(delays_seconds)
    )


def park_entries(token: str, entry_ids: Sequence[int], reasons: Sequence[str]) -> TextClause:
    """Park entries that can never be sent as they are, each with its reason."""
    return _PARK.bindparams(token=token, entry_ids=list(entry_ids), reasons=list(reasons))


def requeue_overdue(after_seconds: float, *, most: int) -> TextClause:
    """Make entries due again whose message never arrived: rows of (id, job_id, correlation_id)."""
    return _RESEND.bindparams(after_seconds=after_seconds, most=most)
