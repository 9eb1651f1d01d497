"""Statements about what could not be delivered: messages in the queue's own DLQ, parked entries.

The queue's DLQ says only that a message was received too often. The truth about its entry is in
Postgres, so a dead message is kept, compared with the truth, and resolved where that is enough:
``requeued`` (it was still to be claimed), ``in hand`` (claimed, due or held), ``settled``.
What is foreign, or cannot be read, stays open for an operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from sqlalchemy.sql.elements import TextClause

# A message that was put back by hand and died again is judged again.
_STORE = sa.text(
    """
INSERT INTO parked_message (queue, message_id, reason, body, attributes, entry_id, job_id,
                            receive_count)
SELECT CAST(:queue AS text), p.message_id, p.reason, p.body, p.attributes, p.entry_id, p.job_id,
       p.receive_count
FROM unnest(CAST(:message_ids AS text[]), CAST(:reasons AS text[]), CAST(:bodies AS text[]),
            CAST(:attributes AS jsonb[]), CAST(:entry_ids AS bigint[]), CAST(:job_ids AS uuid[]),
            CAST(:receive_counts AS integer[]))
     AS p (message_id, reason, body, attributes, entry_id, job_id, receive_count)
ORDER BY p.message_id
ON CONFLICT (message_id) DO UPDATE
SET receive_count = EXCLUDED.receive_count, reason = EXCLUDED.reason, resolution = NULL,
    resolved_at = NULL
"""
)

_RECONCILE = sa.text(
    """
WITH asked AS MATERIALIZED (
    SELECT message_id, entry_id, job_id FROM parked_message
    WHERE message_id = ANY(CAST(:message_ids AS text[])) AND entry_id IS NOT NULL
), free AS MATERIALIZED (
    SELECT o.id FROM outbox o
    WHERE (o.id, o.job_id) IN (SELECT entry_id, job_id FROM asked) AND o.state = 'SENT'
    ORDER BY o.id
    FOR UPDATE
), due_again AS (
    UPDATE outbox o SET state = 'PENDING', sent_at = NULL, relay_attempts = 0
    FROM free f WHERE o.id = f.id
    RETURNING o.id
), judged AS MATERIALIZED (
    SELECT a.message_id,
           CASE WHEN o.id IS NULL THEN 'settled'
                WHEN o.job_id <> a.job_id OR o.state = 'PARKED' THEN NULL
                WHEN o.id IN (SELECT id FROM due_again) THEN 'requeued'
                ELSE 'in hand' END AS resolution
    FROM asked a LEFT JOIN outbox o ON o.id = a.entry_id
)
UPDATE parked_message p
SET resolution = j.resolution, resolved_at = CASE WHEN j.resolution IS NOT NULL THEN now() END
FROM judged j WHERE p.message_id = j.message_id
RETURNING p.id, p.message_id, p.entry_id, p.resolution,
          (SELECT j.key FROM job j WHERE j.id = p.job_id) AS job_key
"""
)

_AGAIN = """
), of_job AS MATERIALIZED (
    SELECT id, status FROM job WHERE id IN (SELECT job_id FROM entry) FOR SHARE
), due AS (
    UPDATE outbox o
    SET state = CASE WHEN o.type = 'event' OR j.status IN ('SUBMITTED', 'RUNNING')
                     THEN 'PENDING' ELSE 'HELD' END,
        parked_reason = NULL, sent_at = NULL, relay_attempts = 0
    FROM entry e JOIN of_job j ON j.id = e.job_id
    WHERE o.id = e.id
    RETURNING o.id, o.state
)
"""

_AGAIN_ENTRY = sa.text(
    """
WITH entry AS MATERIALIZED (
    SELECT id, job_id FROM outbox WHERE id = CAST(:id AS bigint) AND state = 'PARKED' FOR UPDATE
"""
    + _AGAIN
    + "SELECT id, state FROM due"
)

_AGAIN_MESSAGE = sa.text(
    """
WITH message AS MATERIALIZED (
    SELECT id, entry_id, job_id FROM parked_message
    WHERE id = CAST(:id AS bigint) AND resolved_at IS NULL AND entry_id IS NOT NULL
    FOR UPDATE
), entry AS MATERIALIZED (
    SELECT o.id, o.job_id FROM outbox o JOIN message m ON m.entry_id = o.id AND m.job_id = o.job_id
    WHERE o.state IN ('SENT', 'PARKED')
    FOR UPDATE OF o
"""
    + _AGAIN
    + """
UPDATE parked_message p
SET resolved_at = now(),
    resolution = CASE WHEN EXISTS (SELECT FROM due) THEN 'requeued'
                      WHEN EXISTS (SELECT FROM outbox o
                                   WHERE o.id = m.entry_id AND o.job_id = m.job_id) THEN 'in hand'
                      ELSE 'settled' END
FROM message m WHERE p.id = m.id
RETURNING p.id, p.resolution
"""
)

_MATCHING = """
outbox o
WHERE o.state = 'PARKED'
  AND (CAST(:type AS text) IS NULL OR o.type = CAST(:type AS text))
  AND (CAST(:kind AS text) IS NULL OR o.kind = CAST(:kind AS text))
  AND (CAST(:job_id AS uuid) IS NULL OR o.job_id = CAST(:job_id AS uuid))
  AND (CAST(:reason AS text) IS NULL OR strpos(o.parked_reason, CAST(:reason AS text)) > 0)
"""

# An entry that somebody holds, or whose job somebody holds, is left: the others do not wait for it.
_AGAIN_ENTRIES = sa.text(
    f"""
WITH entry AS MATERIALIZED (
    SELECT o.id, o.job_id FROM {_MATCHING} AND o.id > CAST(:after AS bigint)
    ORDER BY o.id
    LIMIT CAST(:most AS integer)
    FOR UPDATE OF o SKIP LOCKED
{_AGAIN.replace("FOR SHARE", "ORDER BY id FOR SHARE SKIP LOCKED")}
SELECT (SELECT count(*) FROM entry)::integer AS looked, (SELECT max(id) FROM entry) AS last,
       (SELECT count(*) FROM due)::integer AS released
"""
)

_COUNT_ENTRIES = sa.text(
    f"""
SELECT count(*)::integer AS many
FROM (SELECT FROM {_MATCHING} LIMIT CAST(:most AS integer)) AS matching
"""
)

_DISMISS = sa.text(
    """
UPDATE parked_message SET resolution = 'dismissed', resolved_at = now()
WHERE id = CAST(:id AS bigint) AND resolved_at IS NULL
RETURNING id
"""
)

_MESSAGES = sa.text(
    """
SELECT id, queue, message_id, reason, body, attributes::text AS attributes, entry_id, job_id,
       receive_count, parked_at, resolution, resolved_at
FROM parked_message
WHERE id > CAST(:after AS bigint) AND (NOT CAST(:only_open AS boolean) OR resolved_at IS NULL)
ORDER BY id
LIMIT CAST(:most AS integer)
"""
)

_ENTRIES = sa.text(
    """
SELECT o.id, o.type, o.job_id, j.key AS job_key, o.kind, o.first_ordinal, o.last_ordinal,
       o.unfinished, o.parked_reason, o.relay_attempts, o.created_at, o.correlation_id
FROM outbox o LEFT JOIN job j ON j.id = o.job_id
WHERE o.state = 'PARKED' AND o.id > CAST(:after AS bigint)
ORDER BY o.id
LIMIT CAST(:most AS integer)
"""
)


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Which parked entries; what is null does not narrow. ``reason`` is a part of theirs."""

    type: str | None = None
    kind: str | None = None
    job_id: UUID | None = None
    reason: str | None = None

    def values(self) -> dict[str, Any]:
        """Give the values that the statements ask for."""
        return {
            "type": self.type, "kind": self.kind, "job_id": self.job_id, "reason": self.reason,
        }  # fmt: skip


def store_dead_messages(queue: str, messages: Mapping[str, Sequence[Any]]) -> TextClause:
    """Keep messages of the queue's DLQ: message_ids, reasons, bodies, attributes (JSON texts),
    entry_ids and job_ids (null where they cannot be read), receive_counts.
    """
    return _STORE.bindparams(queue=queue, **messages)


def reconcile_messages(message_ids: Sequence[str]) -> TextClause:
    """Compare stored messages with the truth, and make due again what is still to be claimed.

    Rows of (id, message_id, entry_id, resolution, null: open, job_key) of what names an entry.
    """
    return _RECONCILE.bindparams(message_ids=list(message_ids))


def reprocess_parked_entry(id: int) -> TextClause:  # noqa: A002 - the column's name
    """Make a PARKED entry due again, or HELD while its job is not active: (id, state)."""
    return _AGAIN_ENTRY.bindparams(id=id)


def reprocess_parked_entries(which: EntryFilter, *, after: int, most: int) -> TextClause:
    """Do so for up to ``most`` entries with ids above ``after``: (looked, last, released)."""
    return _AGAIN_ENTRIES.bindparams(**which.values(), after=after, most=most)


def count_parked_entries(which: EntryFilter, *, most: int) -> TextClause:
    """Count parked entries, up to ``most``: (many)."""
    return _COUNT_ENTRIES.bindparams(**which.values(), most=most)


def reprocess_parked_message(id: int) -> TextClause:  # noqa: A002 - the column's name
    """Make the entry of an open message due again if it waits for one: (id, resolution).

    No row: there is no such open message, or it names no entry (dismiss it then).
    """
    return _AGAIN_MESSAGE.bindparams(id=id)


def dismiss_parked_message(id: int) -> TextClause:  # noqa: A002 - the column's name
    """Close a message that nobody has to look at any more: (id), or no row: it is not open."""
    return _DISMISS.bindparams(id=id)


def list_parked_messages(*, after: int, only_open: bool, most: int) -> TextClause:
    """List kept messages by id: (id, queue, message_id, reason, body, attributes, entry_id,
    job_id, receive_count, parked_at, resolution, resolved_at).
    """
    return _MESSAGES.bindparams(after=after, only_open=only_open, most=most)


def list_parked_entries(*, after: int, most: int) -> TextClause:
    """List PARKED entries by id: (id, type, job_id, job_key, kind, first_ordinal, last_ordinal,
    unfinished, parked_reason, relay_attempts, created_at, correlation_id).
    """
    return _ENTRIES.bindparams(after=after, most=most)
