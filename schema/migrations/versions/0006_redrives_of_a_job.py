"""The redrives of a job are found by its id: its story read every redrive that came after it."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the change; the caller set ``lock_timeout``."""
    op.execute("CREATE INDEX redrive_job ON redrive ((filter ->> 'job'))")


def downgrade() -> None:
    """Take the change back."""
    op.execute("DROP INDEX redrive_job")
