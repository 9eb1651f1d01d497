"""How long a statement waits for a row that somebody else holds, before it fails by 55P03."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from sqlalchemy.sql.elements import TextClause

_LIMIT_LOCK_WAITS = sa.text("SELECT set_config('lock_timeout', CAST(:lock_timeout AS text), true)")

# A condition of the part of a statement that locks first. It names no row, so Postgres evaluates it
# before it reads any: the limit costs no round trip, and holds to the end of the transaction.
BRIEFLY = """(SELECT set_config(
        'lock_timeout', coalesce(CAST(:lock_timeout AS text), current_setting('lock_timeout')),
        true)) IS NOT NULL"""


def limit_lock_waits(seconds: float) -> TextClause:
    """Let no statement of this transaction wait longer than ``seconds`` for a lock."""
    return _LIMIT_LOCK_WAITS.bindparams(lock_timeout=lock_timeout(seconds))


def lock_timeout(seconds: float | None) -> str | None:
    """Write a limit for ``BRIEFLY``; none leaves what the transaction has."""
    return None if seconds is None else f"{max(1, round(seconds * 1_000))}ms"
