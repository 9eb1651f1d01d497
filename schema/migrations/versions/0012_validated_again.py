"""The CHECKs that were written anew hold of the rows from before, too."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

# In a transaction of its own: everybody reads and writes meanwhile.
_CHECKS = {
    "job": (
        "job_status",
        "job_end_is_dated",
        "job_pruned_is_final",
        "job_completed_is_whole",
        "job_counts",
    ),
    "outbox": (
        "outbox_type",
        "outbox_state",
        "outbox_only_pending_and_claimed_lock",
        "outbox_names_its_work",
    ),
    "input": ("input_status", "input_unfinished_is_named"),
}


def upgrade() -> None:
    """Validate, and count anew what stands in columns of new types; ``lock_timeout`` is set."""
    for table, checks in _CHECKS.items():
        parts = ", ".join(f"VALIDATE CONSTRAINT {check}" for check in checks)
        op.execute(f"ALTER TABLE {table} {parts}")
    op.execute("ANALYZE job, outbox")


def downgrade() -> None:
    """Change nothing: a CHECK that holds is no change."""
