"""Statements that accept a job: the job, its outbox entries and its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from schema.statements.bound import FOR_EVER, Bound
from schema.statements.locks import BRIEFLY, lock_timeout
from schema.statements.turns import STRIDE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from sqlalchemy.sql.elements import TextClause

# The number comes from a sequence: no row is locked, and gaps mean nothing.
_HEAD = f"""
WITH head AS (
    INSERT INTO job (id, key, owner_id, kind, status, priority, max_attempts, fail_fast, tolerated,
                     options, metadata, request_date, scheduled_for, expires_at, total,
                     idempotency_key, request_digest, correlation_id, traceparent, tracestate,
                     baggage)
    SELECT CAST(:id AS uuid),
           'J' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD') || '_'
               || lpad(n::text, greatest(6, length(n::text)), '0'),
           CAST(:owner_id AS uuid), CAST(:kind AS text), 'SUBMITTED', CAST(:priority AS smallint),
           CAST(:max_attempts AS smallint), CAST(:fail_fast AS boolean),
           CAST(:tolerated AS integer), CAST(:options AS jsonb), CAST(:metadata AS jsonb),
           (now() AT TIME ZONE 'UTC')::date,
           CAST(:scheduled_for AS timestamptz), CAST(:expires_at AS timestamptz),
           CAST(:total AS integer), CAST(:idempotency_key AS text), CAST(:request_digest AS bytea),
           CAST(:correlation_id AS text), CAST(:traceparent AS text), CAST(:tracestate AS text),
           CAST(:baggage AS text)
    FROM nextval('job_number') AS n
    WHERE {BRIEFLY}
    ON CONFLICT (owner_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING id, key, status, owner_id, kind, priority, total, scheduled_for, correlation_id,
              traceparent, tracestate, baggage
)
"""

# The entries of the ordinals from ``:first`` to before ``:until``. now() is the transaction's: all
# entries of a job are due at once, and have their turns one after the other.
_CHUNKS = f"""
INSERT INTO outbox ({{id_column}}type, job_id, owner_id, kind, first_ordinal, last_ordinal,
                    unfinished, priority, available_at, turn_at, deferred, correlation_id,
                    traceparent, tracestate, baggage)
SELECT {{id_value}}'inputs', id, owner_id, kind, f,
       least(f + CAST(:chunk_size AS integer), total) - 1,
       least(CAST(:chunk_size AS integer), total - f), priority,
       coalesce(scheduled_for, now()),
       coalesce(scheduled_for, now()) + f / CAST(:chunk_size AS integer) * {STRIDE},
       coalesce(scheduled_for > now(), false), correlation_id, traceparent, tracestate, baggage
FROM head,
     generate_series(CAST(:first AS integer), CAST(:until AS integer) - 1,
                     CAST(:chunk_size AS integer)) AS f
"""

_WHOLE = sa.text(
    f"""{_HEAD}, chunk AS ({_CHUNKS.format(id_column="", id_value="")}
    RETURNING id, first_ordinal
), named AS (
    INSERT INTO input (job_id, ordinal, body, entry_id)
    SELECT head.id, b.ordinality - 1, b.value, chunk.id
    FROM head
    CROSS JOIN jsonb_array_elements(CAST(:bodies AS jsonb)) WITH ORDINALITY AS b
    JOIN chunk ON chunk.first_ordinal
               = (b.ordinality - 1) / CAST(:chunk_size AS integer) * CAST(:chunk_size AS integer)
)
SELECT key, status,
       CASE WHEN CAST(:wake AS text) IS NOT NULL
            THEN pg_notify(CAST(:wake AS text), '') END AS woken
FROM head
"""
)

_ALONE = sa.text(f"{_HEAD} SELECT key, status FROM head")

_RESERVE = sa.text(
    """
SELECT array_agg(nextval('outbox_id_seq')) AS entry_ids
FROM generate_series(1, CAST(:many AS integer))
"""
)

_ID = (
    "(CAST(:entry_ids AS bigint[]))"
    "[(f - CAST(:first AS integer)) / CAST(:chunk_size AS integer) + 1], "
)
_ENTRIES = sa.text(
    f"""
WITH head AS (SELECT * FROM job WHERE id = CAST(:id AS uuid))
{_CHUNKS.format(id_column="id, ", id_value=_ID)}
"""
)

_EARLIER = sa.text(
    """
SELECT key, correlation_id, request_digest FROM job
WHERE owner_id = CAST(:owner_id AS uuid) AND idempotency_key = CAST(:idempotency_key AS text)
"""
)

# The columns that COPY fills, in this order; the rest have defaults.
INPUT_COPY_COLUMNS = ("job_id", "ordinal", "body", "entry_id")


def insert_job(
    head: Mapping[str, Any],
    *,
    chunk_size: int,
    bodies: str,
    wake: str | None = None,
    lock_seconds: float | None = None,
) -> Bound:
    """Insert a whole job in one statement; ``bodies`` is a JSON array, one element an input.

    ``head`` has a value for every column that the client decides on; ``tolerated`` may be left
    out. The commit notifies the channel ``wake``, if there is one. No row, nor who uses the
    same idempotency key now, is waited for longer than ``lock_seconds``. Returns (key, status), or
    no row when the owner has used the idempotency key before.
    """
    whole = {"first": 0, "until": head["total"], "chunk_size": chunk_size, "bodies": bodies}
    values = {"tolerated": 0, "wake": wake, **head, **whole}
    values["lock_timeout"] = lock_timeout(lock_seconds)
    # It reads nothing that grows: planning it anew cost Postgres as much as running it.
    return Bound(_WHOLE, values, plan_seconds=FOR_EVER)


def reserve_entries(many: int) -> Bound:
    """Take ids for so many entries, which nobody else gets: one row of (entry_ids)."""
    return Bound(_RESERVE, {"many": many})


def insert_job_alone(head: Mapping[str, Any], *, lock_seconds: float | None = None) -> Bound:
    """Insert a job whose inputs were copied, and whose entries follow, in the same transaction.

    ``head``, and what is returned, as for ``insert_job``.
    """
    return Bound(_ALONE, {"tolerated": 0, **head, "lock_timeout": lock_timeout(lock_seconds)})


def insert_entries(
    job_id: UUID, *, first: int, until: int, chunk_size: int, entry_ids: Sequence[int]
) -> Bound:
    """Insert the entries of the ordinals from ``first`` to before ``until``, under ids that are
    reserved.

    ``first`` is a multiple of ``chunk_size``, and so is ``until`` or it is the job's total.
    """
    values = {"id": job_id, "first": first, "until": until, "chunk_size": chunk_size}
    return Bound(_ENTRIES, {**values, "entry_ids": entry_ids})


def find_by_idempotency_key(owner_id: UUID, idempotency_key: str) -> TextClause:
    """Find the job that first used the key: (key, correlation_id, request_digest)."""
    return _EARLIER.bindparams(owner_id=owner_id, idempotency_key=idempotency_key)
