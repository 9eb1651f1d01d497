"""Control, redrive, retention and the infrastructure's dead letters."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# Every default is a constant: no table is rewritten, however large it is. Nor is one read through
# while nobody else may read it: 0007 looks whether the CHECKs hold of what was there.
_CHANGES = (
    """
ALTER TABLE job
    ADD COLUMN tolerated integer NOT NULL DEFAULT 0,
    ADD COLUMN forgiven integer NOT NULL DEFAULT 0,
    ADD COLUMN sweeping boolean NOT NULL DEFAULT false,
    ADD COLUMN control_version integer NOT NULL DEFAULT 0,
    ADD COLUMN pruned_at timestamptz,
    ADD CONSTRAINT job_tolerated CHECK (tolerated >= 0) NOT VALID,
    ADD CONSTRAINT job_forgiven CHECK (forgiven >= 0) NOT VALID,
    ADD CONSTRAINT job_pruned_is_final CHECK (
        pruned_at IS NULL OR status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED'))
        NOT VALID""",
    """
ALTER TABLE parked_message
    ADD COLUMN entry_id bigint,
    ADD COLUMN job_id uuid,
    ADD COLUMN receive_count integer,
    ADD COLUMN resolution text,
    ADD COLUMN resolved_at timestamptz,
    ADD CONSTRAINT parked_message_resolution CHECK (
        resolution IN ('requeued', 'in hand', 'settled', 'dismissed')) NOT VALID,
    ADD CONSTRAINT parked_message_resolution_is_dated CHECK (
        (resolution IS NULL) = (resolved_at IS NULL)) NOT VALID""",
    """
CREATE TABLE redrive (
    id uuid PRIMARY KEY,
    owner_id uuid,
    requested_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    source text NOT NULL CONSTRAINT redrive_source CHECK (source IN ('job', 'dlq')),
    filter jsonb NOT NULL,
    cursor jsonb,
    matched integer NOT NULL DEFAULT 0,
    redriven integer NOT NULL DEFAULT 0,
    stopped_reason text,
    finished_at timestamptz,
    CONSTRAINT redrive_counts_fit CHECK (redriven BETWEEN 0 AND matched),
    CONSTRAINT redrive_stop_is_end CHECK (stopped_reason IS NULL OR finished_at IS NOT NULL)
)""",
)

_INDEXES = (
    "CREATE INDEX job_sweeping ON job (id) WHERE sweeping",
    "CREATE INDEX job_expiring ON job (expires_at)"
    " WHERE expires_at IS NOT NULL AND status IN ('SUBMITTED', 'RUNNING', 'PAUSED')",
    "CREATE INDEX job_finished ON job (finished_at)"
    " WHERE finished_at IS NOT NULL AND pruned_at IS NULL",
    "CREATE INDEX job_pruned ON job (pruned_at) WHERE pruned_at IS NOT NULL",
    "CREATE INDEX outbox_event ON outbox (priority DESC, available_at, id)"
    " WHERE state = 'PENDING' AND type = 'event'",
    "CREATE INDEX outbox_parked ON outbox (id) WHERE state = 'PARKED'",
    "CREATE INDEX attempt_ended ON attempt (ended_at)",
    "CREATE INDEX dead_letter_recent ON dead_letter (died_at, job_id, ordinal)",
    "CREATE INDEX parked_message_open ON parked_message (id) WHERE resolved_at IS NULL",
    "CREATE INDEX parked_message_resolved ON parked_message (resolved_at)"
    " WHERE resolved_at IS NOT NULL",
    "CREATE INDEX redrive_open ON redrive (id) WHERE finished_at IS NULL",
    "CREATE INDEX redrive_finished ON redrive (finished_at) WHERE finished_at IS NOT NULL",
)


def upgrade() -> None:
    """Make the changes; the caller set ``lock_timeout``."""
    for statement in (*_CHANGES, *_INDEXES):
        op.execute(statement)


def downgrade() -> None:
    """Take the changes back; what was recorded of redrives and resolutions is lost."""
    op.execute("DROP TABLE redrive")
    for index in ("dead_letter_recent", "attempt_ended", "outbox_parked", "outbox_event"):
        op.execute(f"DROP INDEX {index}")
    op.execute(
        "ALTER TABLE parked_message DROP COLUMN entry_id, DROP COLUMN job_id,"
        " DROP COLUMN receive_count, DROP COLUMN resolution, DROP COLUMN resolved_at"
    )
    op.execute(
        "ALTER TABLE job DROP COLUMN tolerated, DROP COLUMN forgiven, DROP COLUMN sweeping,"
        " DROP COLUMN control_version, DROP COLUMN pruned_at"
    )
