"""What had the work of an entry done again, for traces; duties that one worker has at a time."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TABLES = ("outbox", "redrive")


def upgrade() -> None:
    """Make the changes; the caller set ``lock_timeout``."""
    for table in _TABLES:
        op.execute(f"ALTER TABLE {table} ADD COLUMN origin text")
    op.execute(
        "CREATE TABLE duty (name text PRIMARY KEY, holder text NOT NULL,"
        " held_until timestamptz NOT NULL)"
    )


def downgrade() -> None:
    """Take the changes back; work that is done again links to nothing then."""
    op.execute("DROP TABLE duty")
    for table in _TABLES:
        op.execute(f"ALTER TABLE {table} DROP COLUMN origin")
