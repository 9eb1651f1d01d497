"""Turns: ready entries in the order of their flows, and what is due later apart from them."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# Defaults are constants to Postgres (now() counts once): no table is rewritten. Entries from
# before have their turn at once, in the order of their ids. 0007 validates the CHECK.
_COLUMNS = """
ALTER TABLE outbox
    ADD COLUMN turn_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN deferred boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT outbox_event_is_not_deferred CHECK (type = 'inputs' OR NOT deferred) NOT VALID"""

_DEFER = """
UPDATE outbox SET deferred = true
WHERE type = 'inputs' AND state IN ('PENDING', 'HELD') AND available_at > now()"""

# The outbox holds unfinished work only, in chunks: an index is made in less than a second, where
# CONCURRENTLY would wait for every transaction that is open, and leave half an index when it fails.
_INDEXES = (
    "CREATE INDEX outbox_ready ON outbox (kind, owner_id, priority DESC, turn_at, id)"
    " WHERE state = 'PENDING' AND type = 'inputs' AND NOT deferred",
    "CREATE INDEX outbox_deferred ON outbox (available_at) WHERE state = 'PENDING' AND deferred",
    "DROP INDEX outbox_due",
    "DROP INDEX outbox_next",
    "DROP INDEX outbox_sent",
    "CREATE INDEX outbox_sent ON outbox (kind, sent_at) WHERE state = 'SENT'",
)


def upgrade() -> None:
    """Make the changes; the caller set ``lock_timeout``."""
    for statement in (_COLUMNS, _DEFER, *_INDEXES):
        op.execute(statement)


def downgrade() -> None:
    """Take the changes back."""
    for statement in (
        "DROP INDEX outbox_sent",
        "DROP INDEX outbox_deferred",
        "DROP INDEX outbox_ready",
        "CREATE INDEX outbox_due ON outbox (priority DESC, available_at, id)"
        " WHERE state = 'PENDING'",
        "CREATE INDEX outbox_next ON outbox (available_at) WHERE state = 'PENDING'",
        "CREATE INDEX outbox_sent ON outbox (sent_at) WHERE state = 'SENT'",
        "ALTER TABLE outbox DROP COLUMN turn_at, DROP COLUMN deferred",
    ):
        op.execute(statement)
