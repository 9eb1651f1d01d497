"""Times are finite: what waits for ever, or lies before all time, cannot be reckoned with."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_TIMES = {"job": ("scheduled_for", "expires_at"), "outbox": ("available_at", "turn_at")}


def upgrade() -> None:
    """Make the changes; the caller set ``lock_timeout``.

    Tables are read through first, while others read and write them; the CHECKs, which lock them
    for all, are only written down. 0007 looks whether they hold of what was there.
    """
    for table, columns in _TIMES.items():
        for column in columns:
            op.execute(
                f"UPDATE {table} SET {column} = CASE {column} WHEN 'infinity'"
                " THEN timestamptz '8999-12-31 00:00Z' ELSE '1900-01-01 00:00Z' END"
                f" WHERE NOT isfinite({column})"
            )
    for table, columns in _TIMES.items():
        finite = " AND ".join(f"isfinite({column})" for column in columns)
        check = f"{table}_times_are_finite CHECK ({finite})"
        op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {check} NOT VALID")


def downgrade() -> None:
    """Take the changes back."""
    for table in _TIMES:
        op.execute(f"ALTER TABLE {table} DROP CONSTRAINT {table}_times_are_finite")
