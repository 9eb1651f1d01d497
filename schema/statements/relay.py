"""Statements of the relay: lock what has its turn, then write down which of it was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from schema.statements.batch import Batch, Forms, entry_forms
from schema.statements.bound import A_MOMENT, Bound
from schema.statements.turns import (
    FIRST_TURN,
    IN_TURN,
    PICKED_IDS,
    PICKED_TO_SEND,
    READY,
    THESE_TO_SEND,
    Turn,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.sql.elements import TextClause

_COLUMNS = """o.id, o.type, o.job_id, o.owner_id, o.kind, o.payload::text AS payload,
          o.relay_attempts, o.correlation_id, o.traceparent, o.tracestate, o.baggage,
          (SELECT j.key FROM job j WHERE j.id = o.job_id) AS job_key"""

_LOCKED = """locked_by = CAST(:token AS text), relay_attempts = o.relay_attempts + 1,
        locked_until = now() + CAST(:lock_seconds AS double precision) * interval '1 second'"""

# How many whoever claims or relays lets in at a time; more is the promoter's work.
PROMOTED_AT_ONCE = 200
_PROMOTABLE = """o.state = 'PENDING' AND o.deferred AND o.available_at <= now() AND {which}
        ORDER BY o.available_at LIMIT CAST(:promoted AS integer)
        FOR UPDATE SKIP LOCKED"""
_PROMOTE = entry_forms(
    f"SELECT o.id, o.job_id FROM outbox o WHERE {_PROMOTABLE}",
    """
UPDATE outbox SET deferred = false
WHERE id = ANY (ARRAY(SELECT due.id FROM ({target}) AS due))
RETURNING id
""",
)

_LOCK_PICKED = f""", taken AS (
    UPDATE outbox o
    SET {_LOCKED}
    WHERE o.id = {PICKED_IDS}
    RETURNING o.*
)
SELECT {_COLUMNS}, p.place
FROM taken o JOIN picked p ON p.id = o.id
ORDER BY {IN_TURN}
"""
_LOCK = Forms(
    sa.text(PICKED_TO_SEND + _LOCK_PICKED),
    sa.text(THESE_TO_SEND + _LOCK_PICKED),
    sa.text(
        f"""{PICKED_TO_SEND}
SELECT o.id, o.job_id FROM outbox o JOIN picked p ON p.id = o.id ORDER BY {IN_TURN}"""
    ),
)

# Through the index on due events alone: who relays no inputs never looks at their entries.
_LOCK_EVENTS = entry_forms(
    """
    SELECT o.id, o.job_id
    FROM outbox o
    WHERE o.state = 'PENDING' AND o.type = 'event' AND o.available_at <= now()
      AND (o.locked_until IS NULL OR o.locked_until < now()) AND {which}
    ORDER BY o.priority DESC, o.available_at, o.id
    LIMIT CAST(:most AS integer)
    FOR UPDATE OF o SKIP LOCKED
""",
    f"""
WITH target AS MATERIALIZED ({{target}})
UPDATE outbox o
SET {_LOCKED}
FROM target WHERE o.id = target.id
RETURNING {_COLUMNS}
""",
)

# Only what has a parameter is planned anew each time.
_NEXT_EVENT = sa.text(
    """
SELECT extract(epoch FROM min(available_at) - now()) AS seconds
FROM outbox
WHERE state = 'PENDING' AND type = 'event'
  AND (locked_until IS NULL OR locked_until < now())
HAVING count(*) > CAST(:none AS integer)
"""
)

# Kinds are found as flows are, from one to the next. No count goes further than the window; the
# order keeps it on the index, whatever Postgres believes of how many were sent.
_ROOM = sa.text(
    f"""
WITH RECURSIVE ready AS (
    SELECT min(o.kind) AS kind FROM outbox o WHERE {READY}
  UNION ALL
    SELECT (SELECT min(o.kind) FROM outbox o WHERE {READY} AND o.kind > r.kind)
    FROM ready r WHERE r.kind IS NOT NULL
)
SELECT r.kind, CAST(:window AS integer) - (
           SELECT count(*)::integer
           FROM (SELECT FROM outbox WHERE state = 'SENT' AND kind = r.kind
                 ORDER BY sent_at LIMIT CAST(:window AS integer)) AS sent
       ) AS room
FROM ready r WHERE r.kind IS NOT NULL
"""
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
    available_at = now() + r.delay_seconds * interval '1 second',
    deferred = o.type = 'inputs' AND r.delay_seconds > 0
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

# A message may lie there because nobody consumes its kind, and then each copy lies beside it: the
# pause doubles, so that what retention leaves of them are few. Claims start it anew.
_RESEND = entry_forms(
    """
    SELECT o.id, o.job_id FROM outbox o
    WHERE o.state = 'SENT'
      AND o.sent_at < now() - CAST(:after_seconds AS double precision) * interval '1 second'
                              * 2 ^ least(o.resends, CAST(:doublings AS integer))
      AND {which}
    ORDER BY o.sent_at
    LIMIT CAST(:most AS integer)
    FOR UPDATE SKIP LOCKED
""",
    """
WITH overdue AS MATERIALIZED ({target})
UPDATE outbox o
SET state = 'PENDING', sent_at = NULL, relay_attempts = 0, resends = o.resends + 1
FROM overdue WHERE o.id = overdue.id
RETURNING o.id, o.correlation_id, (SELECT j.key FROM job j WHERE j.id = o.job_id) AS job_key
""",
)
RESEND_DOUBLINGS = 4


def promote_due(*, most: int = PROMOTED_AT_ONCE) -> Batch:
    """Make up to ``most`` entries ready that were deferred and are due: rows of (id)."""
    return Batch.of(_PROMOTE, {"promoted": most}, A_MOMENT)


def find_room(*, window: int) -> Bound:
    """Say of each kind with ready entries how many more may be sent: rows of (kind, room).

    That is until ``window`` of the kind are sent and not claimed.
    """
    return Bound(_ROOM, {"window": window}, A_MOMENT)


def lock_ready(
    token: str, lock_seconds: float, *, kind: str, most: int, turn: Turn = FIRST_TURN
) -> Batch:
    """Lock up to ``most`` ready entries of a kind for sending, owner by owner after ``turn``.

    In turn; ``place`` is the flow's, for the next turn. A stale lock is no lock.
    """
    values = {
        "token": token,
        "lock_seconds": lock_seconds,
        "kinds": [kind],
        "most": most,
        "after_kind": turn.kind,
        "after_owner": turn.owner_id,
    }
    return Batch.of(_LOCK, values, A_MOMENT)


def lock_due_events(token: str, lock_seconds: float, *, most: int) -> Batch:
    """Lock up to ``most`` due events for sending; a stale lock is no lock."""
    values = {"token": token, "lock_seconds": lock_seconds, "most": most}
    return Batch.of(_LOCK_EVENTS, values, A_MOMENT)


def next_event() -> Bound:
    """Give the seconds until the next free event is due (negative: overdue), or no row."""
    return Bound(_NEXT_EVENT, {"none": 0}, A_MOMENT)


def mark_sent(token: str, entry_ids: Sequence[int]) -> Bound:
    """Mark entries SENT that this token still locks and no consumer has claimed meanwhile."""
    return Bound(_MARK_SENT, {"token": token, "entry_ids": list(entry_ids)}, A_MOMENT)


def delete_published_events(token: str, entry_ids: Sequence[int]) -> Bound:
    """Delete event entries that were published: there is nothing left to do for them."""
    return Bound(_DROP_EVENTS, {"token": token, "entry_ids": list(entry_ids)}, A_MOMENT)


def back_off(token: str, entry_ids: Sequence[int], delays_seconds: Sequence[float]) -> TextClause:
    """Unlock entries that could not be sent now; each is due again after its delay."""
    return _BACK_OFF.bindparams(
        token=token, entry_ids=list(entry_ids), delays_seconds=list(delays_seconds)
    )


def park_entries(token: str, entry_ids: Sequence[int], reasons: Sequence[str]) -> TextClause:
    """Park entries that can never be sent as they are, each with its reason."""
    return _PARK.bindparams(token=token, entry_ids=list(entry_ids), reasons=list(reasons))


def requeue_overdue(after_seconds: float, *, most: int) -> Batch:
    """Make entries due again whose message never arrived: rows of (id, correlation_id, job_key).

    That is after ``after_seconds``, and after twice as long each time, up to sixteen times.
    """
    values = {"after_seconds": after_seconds, "most": most, "doublings": RESEND_DOUBLINGS}
    return Batch.of(_RESEND, values)
