"""Statements that record outcomes: inputs, their entries and their job's counters at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from schema.statements.bound import A_MOMENT, Bound
from schema.statements.turns import STRIDE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.sql.elements import TextClause

# The ordinals of a run are an array to Postgres, which looks each up by the key: of a range it
# would have to guess how much of the table it is.
# Rows are locked entries first, then inputs, then jobs in id order: the order of every writer.
# Whatever of a job is written follows from its locked row alone. Where another commit came between
# this statement's snapshot and that lock, Postgres first tries the update, CHECKs included, on the
# row of the snapshot: a status of the newer row would stand beside counters of the older one.
_SETTLE = sa.text(
    """
WITH outcome AS MATERIALIZED (
    SELECT * FROM unnest(
        CAST(:entry_ids AS bigint[]), CAST(:epochs AS integer[]), CAST(:statuses AS text[]),
        CAST(:attempts AS smallint[]), CAST(:next_entry_ids AS bigint[]),
        CAST(:results AS jsonb[]), CAST(:reused AS boolean[]), CAST(:elapsed_ms AS integer[]),
        CAST(:error_classes AS text[]), CAST(:error_messages AS text[]),
        CAST(:first_ordinals AS integer[]), CAST(:last_ordinals AS integer[]))
        AS o (entry_id, epoch, status, attempts, next_entry_id, result, reused, elapsed_ms,
              error_class, error_message, first_ordinal, last_ordinal)
), held AS MATERIALIZED (
    SELECT b.id, b.epoch, b.job_id
    FROM outbox b
    JOIN unnest(CAST(:held_ids AS bigint[]), CAST(:held_epochs AS integer[])) AS h (id, epoch)
      ON b.id = h.id AND b.epoch = h.epoch
    WHERE b.state = 'CLAIMED' AND b.locked_until > now()
    ORDER BY b.id
    FOR UPDATE OF b
), written AS (
    UPDATE input i
    SET status = o.status, attempts = o.attempts, entry_id = o.next_entry_id, result = o.result,
        reused = o.reused, elapsed_ms = o.elapsed_ms, settled_at = now(),
        error_class = o.error_class, error_message = o.error_message
    FROM outcome o JOIN held ON held.id = o.entry_id AND held.epoch = o.epoch
    WHERE i.job_id = held.job_id AND i.entry_id = o.entry_id
      AND i.ordinal = ANY (ARRAY(SELECT generate_series(o.first_ordinal, o.last_ordinal)))
      AND i.status IN ('PENDING', 'RETRY_WAIT')
    RETURNING o.entry_id, i.job_id, i.ordinal, i.status, i.reused, i.error_message
), per_entry AS MATERIALIZED (
    SELECT entry_id, job_id, count(*)::integer AS n, array_agg(ordinal) AS ordinals
    FROM written GROUP BY entry_id, job_id
), narrowed AS (
    UPDATE outbox b SET unfinished = b.unfinished - p.n
    FROM per_entry p WHERE b.id = p.entry_id AND b.unfinished > p.n
), finished AS (
    DELETE FROM outbox b USING per_entry p WHERE b.id = p.entry_id AND b.unfinished <= p.n
), per_job AS MATERIALIZED (
    SELECT job_id,
           count(*) FILTER (WHERE status = 'SUCCEEDED')::integer AS succeeded,
           count(*) FILTER (WHERE status = 'SKIPPED')::integer AS skipped,
           count(*) FILTER (WHERE status = 'NOT_FOUND')::integer AS not_found,
           count(*) FILTER (WHERE status = 'DLQ')::integer AS dlq,
           count(*) FILTER (WHERE status = 'CANCELLED')::integer AS cancelled,
           count(*) FILTER (WHERE status = 'EXPIRED')::integer AS expired,
           count(*) FILTER (WHERE status NOT IN ('PENDING', 'RETRY_WAIT'))::integer AS final,
           count(*) FILTER (WHERE NOT reused)::integer AS files_generated,
           count(*) FILTER (WHERE reused)::integer AS files_reused,
           min(error_message) FILTER (WHERE status = 'DLQ') AS error_message
    FROM written GROUP BY job_id
), locked_job AS MATERIALIZED (
    SELECT * FROM job WHERE id IN (SELECT job_id FROM per_job) ORDER BY id FOR NO KEY UPDATE
), counted AS MATERIALIZED (
    SELECT l.id, l.status AS was, l.finished_at, l.succeeded + d.succeeded AS succeeded,
           l.skipped + d.skipped AS skipped, l.not_found + d.not_found AS not_found,
           l.dlq + d.dlq AS dlq, l.cancelled + d.cancelled AS cancelled,
           l.expired + d.expired AS expired,
           l.files_generated + d.files_generated AS files_generated,
           l.files_reused + d.files_reused AS files_reused,
           coalesce(l.error_message, d.error_message) AS error_message,
           d.final + l.succeeded + l.skipped + l.not_found + l.dlq + l.cancelled + l.expired
               < l.total AS has_rest,
           l.fail_fast AND l.dlq + d.dlq - l.forgiven > l.tolerated AS fails_fast
    FROM locked_job l JOIN per_job d ON d.job_id = l.id
), judged AS MATERIALIZED (
    SELECT *, CASE WHEN was <> 'RUNNING' OR (has_rest AND NOT fails_fast) THEN was
                   WHEN dlq > 0 THEN 'FAILED' ELSE 'COMPLETED' END AS status
    FROM counted
), tallied AS (
    UPDATE job j
    SET succeeded = o.succeeded, skipped = o.skipped, not_found = o.not_found, dlq = o.dlq,
        cancelled = o.cancelled, expired = o.expired, files_generated = o.files_generated,
        files_reused = o.files_reused, error_message = o.error_message, status = o.status,
        finished_at = CASE WHEN o.status <> o.was THEN clock_timestamp() ELSE o.finished_at END,
        sweeping = j.sweeping OR (o.status <> o.was AND o.has_rest),
        control_version = j.control_version + (o.status <> o.was AND o.has_rest)::integer
    FROM judged o WHERE j.id = o.id
)
SELECT p.entry_id, p.ordinals, o.status <> o.was AND o.has_rest AS ended_early
FROM per_entry p JOIN judged o ON o.id = p.job_id
"""
)

# The columns of outcomes, in the order in which their lists are made: one row for a run of inputs
# of an entry that stand next to each other and of which the same came.
OUTCOME_COLUMNS = (
    "entry_ids", "epochs", "statuses", "attempts", "next_entry_ids", "results", "reused",
    "elapsed_ms", "error_classes", "error_messages", "first_ordinals", "last_ordinals",
)  # fmt: skip

_RESERVE = sa.text(
    """
SELECT nextval(pg_get_serial_sequence('outbox', 'id')) AS id
FROM generate_series(1, CAST(:many AS integer))
"""
)

# Of many entries of one job, as after a redrive, each has its turn after the one before.
_FOLLOW_UP = sa.text(
    f"""
INSERT INTO outbox (id, type, job_id, owner_id, kind, first_ordinal, last_ordinal, unfinished,
                    state, priority, available_at, turn_at, deferred, correlation_id, traceparent,
                    tracestate, baggage, origin)
SELECT r.id, 'inputs', j.id, j.owner_id, j.kind, r.first_ordinal, r.last_ordinal, r.unfinished,
       CASE WHEN j.status IN ('SUBMITTED', 'RUNNING') THEN 'PENDING' ELSE 'HELD' END, j.priority,
       now() + r.delay_seconds * interval '1 second',
       now() + r.delay_seconds * interval '1 second'
           + (row_number() OVER (PARTITION BY j.id ORDER BY r.first_ordinal) - 1) * {STRIDE},
       r.delay_seconds > 0, j.correlation_id, j.traceparent, j.tracestate, j.baggage,
       nullif(r.origin, j.traceparent)
FROM unnest(CAST(:ids AS bigint[]), CAST(:job_ids AS uuid[]), CAST(:firsts AS integer[]),
            CAST(:lasts AS integer[]), CAST(:counts AS integer[]),
            CAST(:delays_seconds AS double precision[]), CAST(:origins AS text[]))
     AS r (id, job_id, first_ordinal, last_ordinal, unfinished, delay_seconds, origin)
JOIN job j ON j.id = r.job_id
"""
)

_ATTEMPTS = sa.text(
    """
INSERT INTO attempt (job_id, ordinal, generation, attempt, status, worker, error_class,
                     error_message, elapsed_ms, next_at)
SELECT a.job_id, a.ordinal, a.generation, a.attempt, a.status, CAST(:worker AS text),
       a.error_class, a.error_message, a.elapsed_ms,
       now() + a.delay_seconds * interval '1 second'
FROM unnest(CAST(:job_ids AS uuid[]), CAST(:ordinals AS integer[]),
            CAST(:generations AS smallint[]), CAST(:attempts AS smallint[]),
            CAST(:statuses AS text[]), CAST(:error_classes AS text[]),
            CAST(:error_messages AS text[]), CAST(:elapsed_ms AS integer[]),
            CAST(:delays_seconds AS double precision[]))
     AS a (job_id, ordinal, generation, attempt, status, error_class, error_message, elapsed_ms,
           delay_seconds)
"""
)

_DEAD_LETTERS = sa.text(
    """
INSERT INTO dead_letter (job_id, ordinal, owner_id, kind, attempts, worker, error_class,
                         error_message, fingerprint, correlation_id)
SELECT j.id, d.ordinal, j.owner_id, j.kind, d.attempts, CAST(:worker AS text), d.error_class,
       d.error_message, d.fingerprint, j.correlation_id
FROM unnest(CAST(:job_ids AS uuid[]), CAST(:ordinals AS integer[]),
            CAST(:attempts AS smallint[]), CAST(:error_classes AS text[]),
            CAST(:error_messages AS text[]), CAST(:fingerprints AS text[]))
     AS d (job_id, ordinal, attempts, error_class, error_message, fingerprint)
JOIN job j ON j.id = d.job_id
"""
)

# The payload is a contract of its own, version 1; the relay publishes it and deletes the entry.
_DEATHS = sa.text(
    """
INSERT INTO outbox (type, job_id, owner_id, kind, priority, payload, correlation_id, traceparent,
                    tracestate, baggage)
SELECT 'event', j.id, j.owner_id, j.kind, j.priority,
       jsonb_build_object(
           'v', 1, 'type', 'input.dead', 'jobId', j.key, 'job', j.id, 'ordinal', d.ordinal,
           'kind', j.kind, 'owner', w.name, 'worker', CAST(:worker AS text),
           'attempts', d.attempts, 'maxAttempts', j.max_attempts, 'errorClass', d.error_class,
           'error', d.error_message, 'fingerprint', d.fingerprint,
           'diedAt', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
           'correlationId', j.correlation_id),
       j.correlation_id, j.traceparent, j.tracestate, j.baggage
FROM unnest(CAST(:job_ids AS uuid[]), CAST(:ordinals AS integer[]),
            CAST(:attempts AS smallint[]), CAST(:error_classes AS text[]),
            CAST(:error_messages AS text[]), CAST(:fingerprints AS text[]))
     AS d (job_id, ordinal, attempts, error_class, error_message, fingerprint)
JOIN job j ON j.id = d.job_id
JOIN owner w ON w.id = j.owner_id
ORDER BY d.job_id, d.ordinal
"""
)

_ARTIFACTS = sa.text(
    """
INSERT INTO artifact (owner_id, kind, natural_key, uri, size_bytes, etag, job_id, ordinal)
SELECT DISTINCT ON (j.owner_id, j.kind, a.natural_key)
       j.owner_id, j.kind, a.natural_key, a.uri, a.size_bytes, a.etag, j.id, a.ordinal
FROM unnest(CAST(:job_ids AS uuid[]), CAST(:ordinals AS integer[]),
            CAST(:natural_keys AS text[]), CAST(:uris AS text[]),
            CAST(:sizes_bytes AS bigint[]), CAST(:etags AS text[]))
     AS a (job_id, ordinal, natural_key, uri, size_bytes, etag)
JOIN job j ON j.id = a.job_id
ORDER BY j.owner_id, j.kind, a.natural_key, j.id DESC, a.ordinal
ON CONFLICT (owner_id, kind, natural_key) DO UPDATE
SET uri = EXCLUDED.uri, size_bytes = EXCLUDED.size_bytes, etag = EXCLUDED.etag,
    job_id = EXCLUDED.job_id, ordinal = EXCLUDED.ordinal, created_at = now()
"""
)


def settle_inputs(
    outcomes: Mapping[str, Sequence[Any]], *, held_ids: Sequence[int], held_epochs: Sequence[int]
) -> Bound:
    """Write outcomes of inputs whose entries these epochs hold.

    Rows of (entry_id, ordinals, ended_early): whether the job ended here, with inputs left that
    the sweeper is to end. What does not come back was not accepted: the lease was lost.
    ``outcomes`` has one list for each of ``OUTCOME_COLUMNS``: next_entry_ids are null unless the
    input goes on, results are JSON text.
    """
    values = {**outcomes, "held_ids": list(held_ids), "held_epochs": list(held_epochs)}
    return Bound(_SETTLE, values, A_MOMENT)


def reserve_entry_ids(many: int) -> TextClause:
    """Reserve ids for follow-up entries: rows of (id)."""
    return _RESERVE.bindparams(many=many)


def insert_follow_ups(entries: Mapping[str, Sequence[Any]]) -> TextClause:
    """Insert entries that carry inputs on: ids, job_ids, firsts, lasts, counts, delays_seconds,
    origins (the traceparents of the attempts that failed).
    """
    return _FOLLOW_UP.bindparams(**entries)


def insert_attempts(worker: str, attempts: Mapping[str, Sequence[Any]]) -> TextClause:
    """Keep failed attempts: job_ids, ordinals, generations, attempts, statuses, error_classes,
    error_messages, elapsed_ms, delays_seconds (null where nothing comes next).
    """
    return _ATTEMPTS.bindparams(worker=worker, **attempts)


def insert_dead_letters(worker: str, letters: Mapping[str, Sequence[Any]]) -> TextClause:
    """Keep inputs that gave up: job_ids, ordinals, attempts, error_classes, error_messages,
    fingerprints.
    """
    return _DEAD_LETTERS.bindparams(worker=worker, **letters)


def insert_death_events(worker: str, letters: Mapping[str, Sequence[Any]]) -> TextClause:
    """Order an event for each dead letter; ``letters`` as for ``insert_dead_letters``."""
    return _DEATHS.bindparams(worker=worker, **letters)


def register_artifacts(artifacts: Mapping[str, Sequence[Any]]) -> TextClause:
    """Register files, the latest one winning: job_ids, ordinals, natural_keys, uris,
    sizes_bytes, etags.
    """
    return _ARTIFACTS.bindparams(**artifacts)
