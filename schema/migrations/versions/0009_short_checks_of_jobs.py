"""CHECKs cost less: of what seldom changes, the type of the column checks its values.

Postgres reads every CHECK of a table anew in each statement that writes to it, whatever columns it
writes: to claim and to settle a job of one input, that was a third of its work. A domain is read
once a session, and checked where its column is written. What is left is written shorter: a list is
one constant in its literal form, but many in IN; what another CHECK says is not said again.
"""

from __future__ import annotations

from alembic import op

from schema.migrations.rewording import reword

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# Each with the type that it is to Postgres and to everybody who reads it. 0010 gives them their
# CHECKs: a column that becomes what has one is written anew.
_DOMAINS = {
    "job_priority": "smallint",
    "attempt_limit": "smallint",
    "job_key": "text",
    "kind_name": "text",
    "correlation_id": "text",
    "traceparent": "text",
    "tracestate": "text",
    "baggage": "text",
}
_COLUMNS = {
    "priority": "job_priority",
    "max_attempts": "attempt_limit",
    "key": "job_key",
    "kind": "kind_name",
    "correlation_id": "correlation_id",
    "traceparent": "traceparent",
    "tracestate": "tracestate",
    "baggage": "baggage",
}
_COUNTS = ("succeeded", "skipped", "not_found", "dlq", "cancelled", "expired")
_FILES = ("files_generated", "files_reused")
_FORGIVING = ("tolerated", "forgiven")
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "EXPIRED")
_WAS = {
    "job_status": (
        "status IN ('SUBMITTED', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED',"
        " 'EXPIRED')"
    ),
    "job_end_is_dated": f"(finished_at IS NOT NULL) = (status IN {_ENDED})",
    "job_pruned_is_final": f"pruned_at IS NULL OR status IN {_ENDED}",
    "job_completed_is_whole": (
        "status <> 'COMPLETED' OR ("
        "dlq = 0 AND succeeded + skipped + not_found + cancelled + expired = total)"
    ),
    **{f"job_{column}_check": f"{column} >= 0" for column in (*_COUNTS, *_FILES)},
    **{f"job_{column}": f"{column} >= 0" for column in _FORGIVING},
    "job_priority": "priority BETWEEN 0 AND 9",
    "job_max_attempts": "max_attempts BETWEEN 1 AND 100",
    "job_key_form": "key ~ '^J[0-9]{8}_[0-9]{6,}$'",
    "job_kind_form": "kind ~ '^[a-z][a-z0-9_-]{0,63}$'",
    "job_correlation_id_check": "correlation_id ~ '^[A-Za-z0-9._:/+=@-]{1,128}$'",
    "job_traceparent_check": "length(traceparent) <= 55",
    "job_tracestate_check": "length(tracestate) <= 512",
    "job_baggage_check": "octet_length(baggage) <= 8192",
}
_IS = {
    "job_status": "status = ANY ('{SUBMITTED,RUNNING,PAUSED,COMPLETED,FAILED,CANCELLED,EXPIRED}')",
    "job_end_is_dated": (f"(finished_at IS NOT NULL) = (status = ANY ('{{{','.join(_ENDED)}}}'))"),
    "job_pruned_is_final": "pruned_at IS NULL OR finished_at IS NOT NULL",
    "job_completed_is_whole": (
        "status <> 'COMPLETED' OR succeeded + skipped + not_found + cancelled + expired = total"
    ),
    "job_counts": f"least({', '.join((*_COUNTS, *_FILES, *_FORGIVING))}) >= 0",
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
_DETACHED = _VIEW.format(key="CAST(NULL AS text)", correlation_id="CAST(NULL AS text)")
_ATTACHED = _VIEW.format(key="CAST(j.key AS text)", correlation_id="CAST(j.correlation_id AS text)")


def upgrade() -> None:
    """Make the changes; the caller set ``lock_timeout``. No table is written anew or read."""
    for name, base in _DOMAINS.items():
        op.execute(f"CREATE DOMAIN {name} AS {base}")
    op.execute(_DETACHED)
    reword("job", gone=_WAS, said=_IS, types=_COLUMNS)
    op.execute(_ATTACHED)


def downgrade() -> None:
    """Take the changes back."""
    op.execute(_DETACHED)
    types = {column: _DOMAINS[domain] for column, domain in _COLUMNS.items()}
    reword("job", gone=_IS, said=_WAS, types=types)
    op.execute(_ATTACHED)
    for name in _DOMAINS:
        op.execute(f"DROP DOMAIN {name}")
