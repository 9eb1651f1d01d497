"""Statements that find the jobs that stories are about, with what stands above each story."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from schema.statements.history import KIND_IS_IDLE, kind_ran_at

if TYPE_CHECKING:
    import datetime as dt
    from uuid import UUID

    from sqlalchemy.sql.elements import TextClause

_HEAD = f"""
SELECT j.id, j.key, o.name AS owner, j.kind, j.status, j.total, j.correlation_id, j.traceparent,
       j.requested_at, j.max_attempts,
       extract(epoch FROM coalesce(j.finished_at, now()) - coalesce(j.started_at, j.requested_at))
           AS lasted_seconds,
       {KIND_IS_IDLE} AS kind_is_idle, {kind_ran_at("CAST(:ordinal AS integer)")} AS kind_ran_at
FROM job j JOIN owner o ON o.id = j.owner_id
LEFT JOIN kind_pace p ON p.kind = j.kind
WHERE (CAST(:owner_id AS uuid) IS NULL OR j.owner_id = CAST(:owner_id AS uuid))
"""
_HEAD_OF_JOB = sa.text(f"{_HEAD} AND j.key = CAST(:key AS text)")
_HEADS_OF_CORRELATION = sa.text(
    f"""{_HEAD} AND j.correlation_id = CAST(:correlation_id AS text)
  AND (j.requested_at, j.id) >= (CAST(:from_time AS timestamptz), CAST(:from_id AS uuid))
ORDER BY j.requested_at, j.id
LIMIT CAST(:most AS integer)
"""
)


def find_head(key: str, *, owner_id: UUID | None, ordinal: int | None = None) -> TextClause:
    """Find what a story begins with, of one job or one input of it, or no row.

    (id, key, owner, kind, status, total, correlation_id, traceparent, requested_at,
    max_attempts, lasted_seconds: from its start to its end, or until now; kind_is_idle: no
    consumer has a lease of its kind; kind_ran_at: when one last did, as far as is known).
    """
    return _HEAD_OF_JOB.bindparams(key=key, owner_id=owner_id, ordinal=ordinal)


def list_heads(
    correlation_id: str,
    *,
    owner_id: UUID | None,
    from_time: dt.datetime,
    from_id: UUID,
    most: int,
) -> TextClause:
    """List jobs of a correlation id, the oldest first, from a place on: rows as of a head."""
    return _HEADS_OF_CORRELATION.bindparams(
        correlation_id=correlation_id,
        owner_id=owner_id,
        from_time=from_time,
        from_id=from_id,
        most=most,
        ordinal=None,
    )
