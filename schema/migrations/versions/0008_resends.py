"""How often an entry was sent again, as each time it waits longer for the next."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the change; the caller set ``lock_timeout``. A constant default rewrites no table."""
    op.execute("ALTER TABLE outbox ADD COLUMN resends integer NOT NULL DEFAULT 0")


def downgrade() -> None:
    """Take the change back."""
    op.execute("ALTER TABLE outbox DROP COLUMN resends")
