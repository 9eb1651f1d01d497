"""The tables, as SQLAlchemy Core sees them; ``schema/migrations`` makes them.

No index stands on anything that changes in ``input``: what an index would serve is served by
small tables (unfinished work: ``outbox``; what gave up: ``dead_letter``), so that the one
update of an input row stays heap-only.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import BYTEA, JSONB, UUID

metadata = sa.MetaData()

_TIME = sa.DateTime(timezone=True)
_NOW = sa.text("now()")


def _trace_columns() -> tuple[sa.Column[str], ...]:
    return (
        sa.Column("correlation_id", sa.Text, nullable=False),
        sa.Column("traceparent", sa.Text),
        sa.Column("tracestate", sa.Text),
        sa.Column("baggage", sa.Text),
    )


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False, server_default=sa.text("0"))


def _partial(name: str, *columns: sa.ColumnElement[object], where: str) -> None:
    sa.Index(name, *columns, postgresql_where=sa.text(where))


owner = sa.Table(
    "owner",
    metadata,
    sa.Column("id", UUID, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("created_at", _TIME, nullable=False, server_default=_NOW),
)

api_key = sa.Table(
    "api_key",
    metadata,
    sa.Column("id", UUID, primary_key=True),
    sa.Column("owner_id", UUID, sa.ForeignKey("owner.id"), nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("digest", BYTEA, nullable=False, unique=True),
    sa.Column("label", sa.Text, nullable=False),
    sa.Column("created_at", _TIME, nullable=False, server_default=_NOW),
    sa.Column("expires_at", _TIME),
    sa.Column("revoked_at", _TIME),
)

job_number = sa.Sequence("job_number", metadata=metadata)

job = sa.Table(
    "job",
    metadata,
    sa.Column("id", UUID, primary_key=True),
    sa.Column("key", sa.Text, nullable=False, unique=True),
    sa.Column("owner_id", UUID, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("priority", sa.SmallInteger, nullable=False, server_default=sa.text("5")),
    sa.Column("max_attempts", sa.SmallInteger, nullable=False),
    sa.Column("fail_fast", sa.Boolean, nullable=False, server_default=sa.text("false")),
    sa.Column("options", JSONB, nullable=False, server_default=sa.text("'{}'")),
    sa.Column("metadata", JSONB, nullable=False, server_default=sa.text("'{}'")),
    sa.Column("request_date", sa.Date, nullable=False),
    sa.Column("requested_at", _TIME, nullable=False, server_default=_NOW),
    sa.Column("scheduled_for", _TIME),
    sa.Column("expires_at", _TIME),
    sa.Column("started_at", _TIME),
    sa.Column("finished_at", _TIME),
    sa.Column("total", sa.Integer, nullable=False),
    _count("succeeded"),
    _count("skipped"),
    _count("not_found"),
    _count("dlq"),
    _count("cancelled"),
    _count("expired"),
    _count("files_generated"),
    _count("files_reused"),
    sa.Column("error_message", sa.Text),
    sa.Column("idempotency_key", sa.Text),
    sa.Column("request_digest", BYTEA),
    *_trace_columns(),
    # Fail-fast ends the job once more than ``tolerated`` inputs died, ``forgiven`` ones apart:
    # those that lay in the DLQ when a redrive reopened the job.
    _count("tolerated"),
    _count("forgiven"),
    # True while an entry may stand where the status no longer wants it.
    sa.Column("sweeping", sa.Boolean, nullable=False, server_default=sa.text("false")),
    _count("control_version"),
    sa.Column("pruned_at", _TIME),
)
sa.Index("job_owner_recent", job.c.owner_id, job.c.requested_at, job.c.id)
sa.Index("job_recent", job.c.requested_at, job.c.id)
sa.Index("job_owner_status", job.c.owner_id, job.c.status, job.c.requested_at, job.c.id)
_partial("job_active", job.c.requested_at, where="status IN ('SUBMITTED', 'RUNNING', 'PAUSED')")
sa.Index("job_correlation", job.c.correlation_id)
_partial("job_sweeping", job.c.id, where="sweeping")
_partial(
    "job_expiring",
    job.c.expires_at,
    where="expires_at IS NOT NULL AND status IN ('SUBMITTED', 'RUNNING', 'PAUSED')",
)
_partial("job_finished", job.c.finished_at, where="finished_at IS NOT NULL AND pruned_at IS NULL")
_partial("job_pruned", job.c.pruned_at, where="pruned_at IS NOT NULL")
sa.Index(
    "job_idempotency",
    job.c.owner_id,
    job.c.idempotency_key,
    unique=True,
    postgresql_where=job.c.idempotency_key.is_not(None),
)

# A foreign key would have each job lock its owner's row: a trigger on ``owner`` stands for it.
job.add_is_dependent_on(owner)

input_ = sa.Table(
    "input",
    metadata,
    sa.Column("job_id", UUID, primary_key=True),
    sa.Column("ordinal", sa.Integer, primary_key=True),
    sa.Column("status", sa.Text, nullable=False, server_default=sa.text("'PENDING'")),
    # The one live outbox entry that names this input; null once its outcome is final.
    sa.Column("entry_id", sa.BigInteger),
    sa.Column("attempts", sa.SmallInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("generation", sa.SmallInteger, nullable=False, server_default=sa.text("0")),
    # True: an earlier file was reused; false: a file was written; null: no file came of it.
    sa.Column("reused", sa.Boolean),
    sa.Column("elapsed_ms", sa.Integer),
    sa.Column("settled_at", _TIME),
    sa.Column("ordering_group", sa.Text),
    sa.Column("body", JSONB, nullable=False),
    sa.Column("result", JSONB),
    sa.Column("error_class", sa.Text),
    sa.Column("error_message", sa.Text),
)

outbox = sa.Table(
    "outbox",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("job_id", UUID, nullable=False),
    sa.Column("owner_id", UUID, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("first_ordinal", sa.Integer),
    sa.Column("last_ordinal", sa.Integer),
    sa.Column("unfinished", sa.Integer),
    sa.Column("state", sa.Text, nullable=False, server_default=sa.text("'PENDING'")),
    sa.Column("priority", sa.SmallInteger, nullable=False, server_default=sa.text("5")),
    sa.Column("available_at", _TIME, nullable=False, server_default=_NOW),
    sa.Column("created_at", _TIME, nullable=False, server_default=_NOW),
    sa.Column("epoch", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("locked_by", sa.Text),
    sa.Column("locked_until", _TIME),
    sa.Column("sent_at", _TIME),
    sa.Column("relay_attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("parked_reason", sa.Text),
    sa.Column("ordering_group", sa.Text),
    sa.Column("payload", JSONB),
    *_trace_columns(),
    # When an entry has its turn among those of its owner and kind that are ready.
    sa.Column("turn_at", _TIME, nullable=False, server_default=_NOW),
    # True while ``available_at``, which decides, lies ahead: what is not ready stands apart.
    sa.Column("deferred", sa.Boolean, nullable=False, server_default=sa.text("false")),
    # The traceparent of the attempt or the repair after which this entry does the work again.
    sa.Column("origin", sa.Text),
    # How often its message was sent again since anybody claimed it.
    _count("resends"),
)
_partial(
    "outbox_ready",
    outbox.c.kind,
    outbox.c.owner_id,
    outbox.c.priority.desc(),
    outbox.c.turn_at,
    outbox.c.id,
    where="state = 'PENDING' AND type = 'inputs' AND NOT deferred",
)
_partial("outbox_deferred", outbox.c.available_at, where="state = 'PENDING' AND deferred")
_partial("outbox_lease", outbox.c.locked_until, where="state = 'CLAIMED'")
_partial("outbox_sent", outbox.c.kind, outbox.c.sent_at, where="state = 'SENT'")
sa.Index("outbox_job", outbox.c.job_id, outbox.c.first_ordinal)
_partial(
    "outbox_event",
    outbox.c.priority.desc(),
    outbox.c.available_at,
    outbox.c.id,
    where="state = 'PENDING' AND type = 'event'",
)
_partial("outbox_parked", outbox.c.id, where="state = 'PARKED'")

artifact = sa.Table(
    "artifact",
    metadata,
    sa.Column("owner_id", UUID, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("natural_key", sa.Text, primary_key=True),
    sa.Column("uri", sa.Text, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("etag", sa.Text, nullable=False),
    sa.Column("job_id", UUID, nullable=False),
    sa.Column("ordinal", sa.Integer, nullable=False),
    sa.Column("created_at", _TIME, nullable=False, server_default=_NOW),
)

attempt = sa.Table(
    "attempt",
    metadata,
    sa.Column("job_id", UUID, primary_key=True),
    sa.Column("ordinal", sa.Integer, primary_key=True),
    sa.Column("generation", sa.SmallInteger, primary_key=True),
    sa.Column("attempt", sa.SmallInteger, primary_key=True),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("error_class", sa.Text, nullable=False),
    sa.Column("error_message", sa.Text, nullable=False),
    sa.Column("elapsed_ms", sa.Integer),
    sa.Column("ended_at", _TIME, nullable=False, server_default=_NOW),
    sa.Column("next_at", _TIME),
)
sa.Index("attempt_ended", attempt.c.ended_at)

dead_letter = sa.Table(
    "dead_letter",
    metadata,
    sa.Column("job_id", UUID, primary_key=True),
    sa.Column("ordinal", sa.Integer, primary_key=True),
    sa.Column("owner_id", UUID, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("attempts", sa.SmallInteger, nullable=False),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("error_class", sa.Text, nullable=False),
    sa.Column("error_message", sa.Text, nullable=False),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("died_at", _TIME, nullable=False, server_default=_NOW),
    sa.Column("correlation_id", sa.Text, nullable=False),
)
sa.Index(
    "dead_letter_owner_recent",
    dead_letter.c.owner_id,
    dead_letter.c.died_at,
    dead_letter.c.job_id,
    dead_letter.c.ordinal,
)
sa.Index("dead_letter_recent", dead_letter.c.died_at, dead_letter.c.job_id, dead_letter.c.ordinal)
sa.Index("dead_letter_fingerprint", dead_letter.c.owner_id, dead_letter.c.fingerprint)

parked_message = sa.Table(
    "parked_message",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("queue", sa.Text, nullable=False),
    sa.Column("message_id", sa.Text, nullable=False, unique=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("attributes", JSONB, nullable=False),
    sa.Column("parked_at", _TIME, nullable=False, server_default=_NOW),
    sa.Column("entry_id", sa.BigInteger),
    sa.Column("job_id", UUID),
    sa.Column("receive_count", sa.Integer),
    # Null while somebody has to look at it.
    sa.Column("resolution", sa.Text),
    sa.Column("resolved_at", _TIME),
)
_partial("parked_message_open", parked_message.c.id, where="resolved_at IS NULL")
_partial("parked_message_resolved", parked_message.c.resolved_at, where="resolved_at IS NOT NULL")

redrive = sa.Table(
    "redrive",
    metadata,
    sa.Column("id", UUID, primary_key=True),
    # Whose inputs; null: an administrator's redrive over all owners.
    sa.Column("owner_id", UUID),
    sa.Column("requested_by", sa.Text, nullable=False),
    sa.Column("created_at", _TIME, nullable=False, server_default=_NOW),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("filter", JSONB, nullable=False),
    sa.Column("cursor", JSONB),
    _count("matched"),
    _count("redriven"),
    sa.Column("stopped_reason", sa.Text),
    # The traceparent of the request, to which the traces of the work link.
    sa.Column("origin", sa.Text),
    sa.Column("finished_at", _TIME),
)
_partial("redrive_open", redrive.c.id, where="finished_at IS NULL")
sa.Index("redrive_job", redrive.c.filter["job"].astext)
_partial("redrive_finished", redrive.c.finished_at, where="finished_at IS NOT NULL")

# What one worker at a time does for all, such as measuring; whoever holds it renews it.
duty = sa.Table(
    "duty",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("held_until", _TIME, nullable=False),
)

kind_pace = sa.Table(
    "kind_pace",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("input_ms", sa.Double, nullable=False),
    sa.Column("measured_at", _TIME, nullable=False, server_default=_NOW),
)

index_level = sa.Table(
    "index_level",
    metadata,
    sa.Column("index_key", sa.Text, primary_key=True),
    sa.Column("effective_date", sa.Date, primary_key=True),
    sa.Column("asof_indicator", sa.Text, primary_key=True),
    sa.Column("line", sa.Integer, primary_key=True),
    sa.Column("level", sa.Numeric, nullable=False),
)
