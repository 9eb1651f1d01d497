"""Statements about owners and their API keys, of which only the SHA-256 is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    import datetime as dt
    from uuid import UUID

    from sqlalchemy.sql.elements import TextClause

_FIND = sa.text(
    """
SELECT k.id, k.owner_id, o.name AS owner, k.role,
       CAST(extract(epoch FROM k.expires_at - now()) AS double precision) AS seconds_left
FROM api_key k JOIN owner o ON o.id = k.owner_id
WHERE k.digest = CAST(:digest AS bytea) AND k.revoked_at IS NULL
  AND (k.expires_at IS NULL OR k.expires_at > now())
"""
)

# The empty update returns the owner whether it is new or not.
_CREATE = sa.text(
    """
WITH owned AS (
    INSERT INTO owner (id, name) VALUES (CAST(:owner_id AS uuid), CAST(:owner AS text))
    ON CONFLICT (name) DO UPDATE SET name = EXCLUDED.name
    RETURNING id
)
INSERT INTO api_key (id, owner_id, role, digest, label, expires_at)
SELECT CAST(:id AS uuid), owned.id, CAST(:role AS text), CAST(:digest AS bytea),
       CAST(:label AS text), CAST(:expires_at AS timestamptz)
FROM owned
RETURNING id
"""
)

_LIST = sa.text(
    """
SELECT k.id, o.name AS owner, k.role, k.label, k.created_at, k.expires_at, k.revoked_at,
       coalesce(k.expires_at <= now(), false) AS expired
FROM api_key k JOIN owner o ON o.id = k.owner_id
ORDER BY o.name, k.created_at, k.id
"""
)

_REVOKE = sa.text(
    """
UPDATE api_key SET revoked_at = now()
WHERE id = CAST(:id AS uuid) AND revoked_at IS NULL
RETURNING id
"""
)


def find_key(digest: bytes) -> TextClause:
    """Find a key that is valid now: (id, owner_id, owner, role, seconds_left, null: for ever)."""
    return _FIND.bindparams(digest=digest)


def create_key(
    *,
    id: UUID,  # noqa: A002 - the column's name
    owner_id: UUID,
    owner: str,
    role: str,
    digest: bytes,
    label: str,
    expires_at: dt.datetime | None,
) -> TextClause:
    """Store a key, and its owner if the name is new (``owner_id`` is then the owner's)."""
    return _CREATE.bindparams(
        id=id,
        owner_id=owner_id,
        owner=owner,
        role=role,
        digest=digest,
        label=label,
        expires_at=expires_at,
    )


def list_keys() -> TextClause:
    """List all keys: (id, owner, role, label, created_at, expires_at, revoked_at, expired)."""
    return _LIST


def revoke_key(id: UUID) -> TextClause:  # noqa: A002 - the column's name
    """Revoke a key; returns its id unless there is no such key that is still valid."""
    return _REVOKE.bindparams(id=id)
