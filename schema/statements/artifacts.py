"""Statements about registered files; ``settle.register_artifacts`` is what writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy.sql.elements import TextClause

# Left join: every question has its answer, in order, and each row tells the database's date.
_FIND = sa.text(
    """
SELECT a.uri, a.size_bytes, a.etag, CAST(now() AT TIME ZONE 'UTC' AS date) AS today
FROM unnest(CAST(:owner_ids AS uuid[]), CAST(:natural_keys AS text[])) WITH ORDINALITY
     AS w (owner_id, natural_key, position)
LEFT JOIN artifact a ON a.owner_id = w.owner_id AND a.kind = CAST(:kind AS text)
                    AND a.natural_key = w.natural_key
ORDER BY w.position
"""
)


def find_artifacts(
    kind: str, *, owner_ids: Sequence[UUID], natural_keys: Sequence[str]
) -> TextClause:
    """Find files by owner and natural key: (uri, size_bytes, etag, today) for each, in order.

    The first three are null where none is registered; ``today`` is the database's UTC date.
    """
    return _FIND.bindparams(kind=kind, owner_ids=list(owner_ids), natural_keys=list(natural_keys))
