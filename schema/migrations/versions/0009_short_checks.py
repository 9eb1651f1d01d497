"""CHECKs cost less: of what seldom changes, the type of the column checks its values.

Postgres reads every CHECK of a table anew in each statement that writes to it, whatever columns it
writes: to claim and to settle a job of one input, that was a third of its work. A domain is read
once a session, and checked where its column is written. What is left is written shorter.
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# Each with the type that it is to Postgres and to everybody who reads it.
_DOMAINS = {
    "job_priority": ("smallint", "VALUE BETWEEN 0 AND 9"),
    "attempt_limit": ("smallint", "VALUE BETWEEN 1 AND 100"),
    "job_key": ("text", "VALUE ~ '^J[0-9]{8}_[0-9]{6,}$'"),
    "kind_name": ("text", "VALUE ~ '^[a-z][a-z0-9_-]{0,63}$'"),
    "correlation_id": ("text", "VALUE ~ '^[A-Za-z0-9._:/+=@-]{1,128}$'"),
    "traceparent": ("text", "length(VALUE) <= 55"),
    "tracestate": ("text", "length(VALUE) <= 512"),
    "baggage": ("text", "octet_length(VALUE) <= 8192"),
}
_TRACE = ("correlation_id", "traceparent", "tracestate", "baggage")

# A column, the domain that it gets, and the CHECK that the domain stands for.
_COLUMNS = {
    "job": (
        ("priority", "job_priority", "job_priority"),
        ("max_attempts", "attempt_limit", "job_max_attempts"),
        ("key", "job_key", "job_key_form"),
        ("kind", "kind_name", "job_kind_form"),
        *((column, column, f"job_{column}_check") for column in _TRACE),
    ),
    "outbox": tuple((column, column, f"outbox_{column}_check") for column in _TRACE),
}

# As they were, and as they are: new ones where the columns have new types, and shorter. A list is
# one constant in its literal form, but many in IN; what another CHECK says is not said again.
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "EXPIRED")
_CHECKS = {
    "job": {
        "job_status": (
            "status IN ('SUBMITTED', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED',"
            " 'EXPIRED')",
            "status = ANY ('{SUBMITTED,RUNNING,PAUSED,COMPLETED,FAILED,CANCELLED,EXPIRED}')",
        ),
        "job_end_is_dated": (
            f"(finished_at IS NOT NULL) = (status IN {_ENDED})",
            f"(finished_at IS NOT NULL) = (status = ANY ('{{{','.join(_ENDED)}}}'))",
        ),
        "job_pruned_is_final": (
            f"pruned_at IS NULL OR status IN {_ENDED}",
            "pruned_at IS NULL OR finished_at IS NOT NULL",
        ),
        "job_completed_is_whole": (
            "status <> 'COMPLETED' OR ("
            "dlq = 0 AND succeeded + skipped + not_found + cancelled + expired = total)",
            "status <> 'COMPLETED'"
            " OR succeeded + skipped + not_found + cancelled + expired = total",
        ),
    },
    "outbox": {
        "outbox_type": ("type IN ('inputs', 'event')", "type = ANY ('{inputs,event}')"),
        "outbox_state": (
            "state IN ('PENDING', 'SENT', 'CLAIMED', 'HELD', 'PARKED')",
            "state = ANY ('{PENDING,SENT,CLAIMED,HELD,PARKED}')",
        ),
        "outbox_only_pending_and_claimed_lock": (
            "locked_by IS NULL OR state IN ('PENDING', 'CLAIMED')",
            "locked_by IS NULL OR state = ANY ('{PENDING,CLAIMED}')",
        ),
        "outbox_names_its_work": (
            "CASE type WHEN 'inputs' THEN first_ordinal >= 0 AND last_ordinal >= first_ordinal"
            " AND unfinished BETWEEN 1 AND last_ordinal - first_ordinal + 1 AND payload IS NULL"
            " ELSE payload IS NOT NULL AND state <> 'CLAIMED' END",
            "CASE type WHEN 'inputs' THEN first_ordinal >= 0"
            " AND unfinished BETWEEN 1 AND last_ordinal - first_ordinal + 1 AND payload IS NULL"
            " ELSE payload IS NOT NULL AND state <> 'CLAIMED' AND NOT deferred END",
        ),
    },
    "input": {
        "input_status": (
            "status IN ('PENDING', 'RETRY_WAIT', 'SUCCEEDED', 'DLQ', 'NOT_FOUND', 'SKIPPED',"
            " 'CANCELLED', 'EXPIRED')",
            "status = ANY ('{PENDING,RETRY_WAIT,SUCCEEDED,DLQ,NOT_FOUND,SKIPPED,CANCELLED,"
            "EXPIRED}')",
        ),
        "input_unfinished_is_named": (
            "CASE WHEN status IN ('PENDING', 'RETRY_WAIT') THEN entry_id IS NOT NULL"
            " OR ordering_group IS NOT NULL ELSE entry_id IS NULL END",
            "CASE WHEN status = ANY ('{PENDING,RETRY_WAIT}') THEN entry_id IS NOT NULL"
            " OR ordering_group IS NOT NULL ELSE entry_id IS NULL END",
        ),
    },
}
_COUNTS = ("succeeded", "skipped", "not_found", "dlq", "cancelled", "expired")
_FILES = ("files_generated", "files_reused")
_FORGIVING = ("tolerated", "forgiven")
# One for those of before, or a part of another.
_NEW = {"job": {"job_counts": f"least({', '.join((*_COUNTS, *_FILES, *_FORGIVING))}) >= 0"}}
_OLD = {
    "job": {
        **{f"job_{column}_check": f"{column} >= 0" for column in (*_COUNTS, *_FILES)},
        **{f"job_{column}": f"{column} >= 0" for column in _FORGIVING},
    },
    "outbox": {"outbox_event_is_not_deferred": "type = 'inputs' OR NOT deferred"},
}

# What the view takes from the job's columns. In between it hangs on none of them: to drop it would
# take away who may read it.
_VIEW = """
CREATE OR REPLACE VIEW input_state AS
SELECT i.job_id, {key} AS job_key, i.ordinal,
       CASE WHEN e.state = 'CLAIMED' AND e.locked_until > now() THEN 'RUNNING'
            ELSE i.status END AS state,
       e.state = 'SENT' AS enqueued,
       i.attempts, i.generation, i.body, i.result, i.reused, i.elapsed_ms, i.settled_at,
       i.error_class, i.error_message,
       e.id AS entry_id, e.available_at, e.locked_by AS worker, e.locked_until,
       j.owner_id, {correlation_id} AS correlation_id
FROM input i
JOIN job j ON j.id = i.job_id
LEFT JOIN outbox e ON e.id = i.entry_id
"""


def upgrade() -> None:
    """Make the changes; the caller set ``lock_timeout``.

    No table is rewritten or read through: a column gets its domain before that has a CHECK, and
    what the new CHECKs say the old ones said of every row. So those of the domains need no look
    at the rows at all; those of the tables have theirs by the next migration.
    """
    for name, (base, _) in _DOMAINS.items():
        op.execute(f"CREATE DOMAIN {name} AS {base}")
    _alter(new=1, types={name: name for name in _DOMAINS})
    for name, (_, check) in _DOMAINS.items():
        op.execute(f"ALTER DOMAIN {name} ADD CONSTRAINT {name}_form CHECK ({check}) NOT VALID")


def downgrade() -> None:
    """Take the changes back."""
    _alter(new=0, types={name: base for name, (base, _) in _DOMAINS.items()})
    for name in _DOMAINS:
        op.execute(f"DROP DOMAIN {name}")


def _alter(*, new: int, types: dict[str, str]) -> None:
    op.execute(_VIEW.format(key="CAST(NULL AS text)", correlation_id="CAST(NULL AS text)"))
    for table, checks in _CHECKS.items():
        columns = _COLUMNS.get(table, ())
        of_columns = {
            check: _DOMAINS[domain][1].replace("VALUE", column) for column, domain, check in columns
        }
        forms = [
            {name: forms[0] for name, forms in checks.items()} | _OLD.get(table, {}) | of_columns,
            {name: forms[1] for name, forms in checks.items()} | _NEW.get(table, {}),
        ]
        gone, said = forms[1 - new], forms[new]
        changes = [f"ALTER {column} TYPE {types[domain]}" for column, domain, _ in columns]
        changes += [f"DROP CONSTRAINT {name}" for name in gone]
        changes += [
            f"ADD CONSTRAINT {name} CHECK ({rule}) NOT VALID" for name, rule in said.items()
        ]
        op.execute(f"ALTER TABLE {table} {', '.join(changes)}")
    of_job = "CAST(j.{} AS text)".format
    op.execute(_VIEW.format(key=of_job("key"), correlation_id=of_job("correlation_id")))
