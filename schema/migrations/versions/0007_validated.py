"""What CHECKs of earlier migrations say holds of the rows from before, too."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# A CHECK that is validated as it is added has the whole table read while nobody else may read it.
# Validated in a transaction of its own, it lets everybody read and write meanwhile. Where it was
# validated as it was added, this does nothing.
_CHECKS = {
    "job": ("job_tolerated", "job_forgiven", "job_pruned_is_final", "job_times_are_finite"),
    "parked_message": ("parked_message_resolution", "parked_message_resolution_is_dated"),
    "outbox": ("outbox_event_is_not_deferred", "outbox_times_are_finite"),
}
# What the code from before wrote while 0005 was on its way.
_LATE = tuple(
    f"UPDATE {table} SET {column} = CASE {column} WHEN 'infinity'"
    " THEN timestamptz '8999-12-31 00:00Z' ELSE '1900-01-01 00:00Z' END"
    f" WHERE NOT isfinite({column})"
    for table, columns in {
        "job": ("scheduled_for", "expires_at"),
        "outbox": ("available_at", "turn_at"),
    }.items()
    for column in columns
)


def upgrade() -> None:
    """Validate; the caller set ``lock_timeout``."""
    for statement in _LATE:
        op.execute(statement)
    for table, checks in _CHECKS.items():
        parts = ", ".join(f"VALIDATE CONSTRAINT {check}" for check in checks)
        op.execute(f"ALTER TABLE {table} {parts}")


def downgrade() -> None:
    """Change nothing: a CHECK that holds is no change."""
