"""Inputs have short CHECKs, too."""

from __future__ import annotations

from schema.migrations.rewording import reword

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_WAS = {
    "input_status": (
        "status IN ('PENDING', 'RETRY_WAIT', 'SUCCEEDED', 'DLQ', 'NOT_FOUND', 'SKIPPED',"
        " 'CANCELLED', 'EXPIRED')"
    ),
    "input_unfinished_is_named": (
        "CASE WHEN status IN ('PENDING', 'RETRY_WAIT') THEN entry_id IS NOT NULL"
        " OR ordering_group IS NOT NULL ELSE entry_id IS NULL END"
    ),
}
_IS = {
    "input_status": (
        "status = ANY ('{PENDING,RETRY_WAIT,SUCCEEDED,DLQ,NOT_FOUND,SKIPPED,CANCELLED,EXPIRED}')"
    ),
    "input_unfinished_is_named": (
        "CASE WHEN status = ANY ('{PENDING,RETRY_WAIT}') THEN entry_id IS NOT NULL"
        " OR ordering_group IS NOT NULL ELSE entry_id IS NULL END"
    ),
}


def upgrade() -> None:
    """Make the changes; the caller set ``lock_timeout``. No table is written anew or read."""
    reword("input", gone=_WAS, said=_IS, types={})


def downgrade() -> None:
    """Take the changes back."""
    reword("input", gone=_IS, said=_WAS, types={})
