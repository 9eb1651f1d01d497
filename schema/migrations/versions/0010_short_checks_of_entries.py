"""Entries have short CHECKs, too; and the domains have theirs."""

from __future__ import annotations

from alembic import op

from schema.migrations.rewording import reword

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# NOT VALID for ever: the CHECKs that they stand for held of every row.
_FORMS = {
    "job_priority": "VALUE BETWEEN 0 AND 9",
    "attempt_limit": "VALUE BETWEEN 1 AND 100",
    "job_key": "VALUE ~ '^J[0-9]{8}_[0-9]{6,}$'",
    "kind_name": "VALUE ~ '^[a-z][a-z0-9_-]{0,63}$'",
    "correlation_id": "VALUE ~ '^[A-Za-z0-9._:/+=@-]{1,128}$'",
    "traceparent": "length(VALUE) <= 55",
    "tracestate": "length(VALUE) <= 512",
    "baggage": "octet_length(VALUE) <= 8192",
}
_TRACE = ("correlation_id", "traceparent", "tracestate", "baggage")
_WAS = {
    "outbox_type": "type IN ('inputs', 'event')",
    "outbox_state": "state IN ('PENDING', 'SENT', 'CLAIMED', 'HELD', 'PARKED')",
    "outbox_only_pending_and_claimed_lock": "locked_by IS NULL OR state IN ('PENDING', 'CLAIMED')",
    "outbox_names_its_work": (
        "CASE type WHEN 'inputs' THEN first_ordinal >= 0 AND last_ordinal >= first_ordinal"
        " AND unfinished BETWEEN 1 AND last_ordinal - first_ordinal + 1 AND payload IS NULL"
        " ELSE payload IS NOT NULL AND state <> 'CLAIMED' END"
    ),
    "outbox_event_is_not_deferred": "type = 'inputs' OR NOT deferred",
    **{f"outbox_{column}_check": _FORMS[column].replace("VALUE", column) for column in _TRACE},
}
_IS = {
    "outbox_type": "type = ANY ('{inputs,event}')",
    "outbox_state": "state = ANY ('{PENDING,SENT,CLAIMED,HELD,PARKED}')",
    "outbox_only_pending_and_claimed_lock": (
        "locked_by IS NULL OR state = ANY ('{PENDING,CLAIMED}')"
    ),
    "outbox_names_its_work": (
        "CASE type WHEN 'inputs' THEN first_ordinal >= 0 AND unfinished IS NOT NULL"
        " AND unfinished BETWEEN 1 AND last_ordinal - first_ordinal + 1 AND payload IS NULL"
        " ELSE payload IS NOT NULL AND state <> 'CLAIMED' AND NOT deferred END"
    ),
}


def upgrade() -> None:
    """Make the changes; the caller set ``lock_timeout``. No table is written anew or read."""
    reword("outbox", gone=_WAS, said=_IS, types={column: column for column in _TRACE})
    for name, form in _FORMS.items():
        op.execute(f"ALTER DOMAIN {name} ADD CONSTRAINT {name}_form CHECK ({form}) NOT VALID")


def downgrade() -> None:
    """Take the changes back."""
    for name in _FORMS:
        op.execute(f"ALTER DOMAIN {name} DROP CONSTRAINT {name}_form")
    reword("outbox", gone=_IS, said=_WAS, types=dict.fromkeys(_TRACE, "text"))
