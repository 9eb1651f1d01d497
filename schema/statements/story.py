"""Statements that tell what happened to a job or to one input, in order of time.

They only read what is kept anyway: the job, its live entries, failed attempts, dead letters,
redrives and the outcome on each input. The way of what went well is not written down while it
goes, so that some steps have no row: docs/api.md says which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from schema.statements.history import IS_LONG_DUE

if TYPE_CHECKING:
    import datetime as dt
    from uuid import UUID

    from sqlalchemy.sql.elements import TextClause

# What a step may say, and its type; each source below sets some of these.
_COLUMNS = {
    "at": "timestamptz",
    "until": "timestamptz",
    "n": "bigint",
    "ordinal": "integer",
    "last_ordinal": "integer",
    "inputs": "integer",
    "outcome": "text",
    "generation": "integer",
    "attempt": "integer",
    "worker": "text",
    "error_class": "text",
    "error_message": "text",
    "elapsed_ms": "integer",
    "next_at": "timestamptz",
    "entry_id": "bigint",
    "epoch": "integer",
    "fingerprint": "text",
    "redrive_id": "uuid",
    "requested_by": "text",
    "because": "text",
}


class Part(NamedTuple):
    """A run of ordinals that is told together; the first tells how the job began, the last its end.

    ``first`` is in it, ``until`` is not.
    """

    first: int
    until: int
    begins: bool
    ends: bool


class Place(NamedTuple):
    """Where a step stands in the story of its job."""

    at: dt.datetime
    rank: int
    ordinal: int
    n: int


def _step(rank: int, type_: str, source: str, **said: str) -> str:
    columns = [
        f"CAST({said.get(column, 'NULL')} AS {kept_as}) AS {column}"
        for column, kept_as in _COLUMNS.items()
    ]
    return f"SELECT {rank} AS rank, {type_} AS type, {', '.join(columns)}\n    FROM {source}"


_OUTCOME = "CASE a.status WHEN 'PENDING' THEN 'WORKER_LOST' ELSE a.status END"
_FINAL = "i.status IN ('SUCCEEDED', 'SKIPPED', 'NOT_FOUND', 'CANCELLED', 'EXPIRED')"
_OF_JOB = "CAST(:job_id AS uuid)"
_ONE = "CAST(:ordinal AS integer)"


def _of_part(row: str, ordinal: str = "ordinal") -> str:
    return (
        f"{row}.job_id = {_OF_JOB} AND {row}.{ordinal} >= CAST(:first AS integer)"
        f" AND {row}.{ordinal} < CAST(:until AS integer)"
    )


# The job keeps the error of one input that died; the story of another input has no part in it.
_WHY_FAILED = f"""CASE WHEN j.status = 'FAILED' AND ({_ONE} IS NULL OR EXISTS (
        SELECT FROM dead_letter d WHERE d.job_id = j.id AND d.ordinal = {_ONE}
          AND d.error_message = j.error_message
    )) THEN 'an input died: ' || j.error_message END"""

_OF_THE_JOB = (
    _step(0, "'job.accepted'", "beginning j", at="j.requested_at", inputs="j.total"),
    # Of a job that ended before its time, the time never came.
    _step(
        1,
        "'job.due'",
        "beginning j WHERE j.scheduled_for <= coalesce(j.finished_at, 'infinity')",
        at="j.scheduled_for",
    ),
    _step(2, "'job.started'", "beginning j WHERE j.started_at IS NOT NULL", at="j.started_at"),
    _step(
        12,
        "'job.finished'",
        "ending j WHERE j.finished_at IS NOT NULL",
        at="j.finished_at",
        outcome="j.status",
        because=_WHY_FAILED,
    ),
    _step(
        13,
        "'job.expires'",
        "ending j WHERE j.expires_at IS NOT NULL AND j.finished_at IS NULL",
        at="j.expires_at",
    ),
    _step(14, "'job.pruned'", "ending j WHERE j.pruned_at IS NOT NULL", at="j.pruned_at"),
    _step(
        3,
        "'redrive.requested'",
        f"""beginning j JOIN redrive r ON r.filter ->> 'job' = CAST({_OF_JOB} AS text)
    WHERE ({_ONE} IS NULL OR r.filter -> 'ordinals' IS NULL
           OR r.filter -> 'ordinals' @> to_jsonb({_ONE}))""",
        at="r.created_at",
        until="r.finished_at",
        n="hashtextextended(CAST(r.id AS text), 0)",
        inputs="r.redriven",
        outcome="CASE WHEN r.finished_at IS NULL THEN 'RUNNING'"
        " WHEN r.stopped_reason IS NULL THEN 'DONE' ELSE 'STOPPED' END",
        redrive_id="r.id",
        requested_by="r.requested_by",
        because="r.stopped_reason",
    ),
)

_OF_EACH_INPUT = (
    _step(
        4,
        "'attempt.failed'",
        f"attempt a WHERE {_of_part('a')}",
        at="a.ended_at",
        n="a.generation * 1000 + a.attempt",
        ordinal="a.ordinal",
        inputs="1",
        outcome=_OUTCOME,
        generation="a.generation",
        attempt="a.attempt",
        worker="a.worker",
        error_class="a.error_class",
        error_message="a.error_message",
        elapsed_ms="a.elapsed_ms",
        next_at="a.next_at",
    ),
    _step(
        5,
        "'input.died'",
        f"dead_letter d WHERE {_of_part('d')}",
        at="d.died_at",
        ordinal="d.ordinal",
        inputs="1",
        attempt="d.attempts",
        worker="d.worker",
        error_class="d.error_class",
        error_message="d.error_message",
        fingerprint="d.fingerprint",
    ),
    _step(
        6,
        "'input.settled'",
        f"input i WHERE {_of_part('i')} AND {_FINAL}",
        at="i.settled_at",
        ordinal="i.ordinal",
        inputs="1",
        outcome="i.status",
        generation="i.generation",
        attempt="i.attempts",
        error_class="CASE i.status WHEN 'NOT_FOUND' THEN i.error_class END",
        error_message="CASE i.status WHEN 'NOT_FOUND' THEN i.error_message END",
        elapsed_ms="i.elapsed_ms",
        # Nothing went wrong with what is skipped: its message is the reason that its kind gave.
        because="CASE i.status WHEN 'SKIPPED' THEN i.error_message END",
    ),
)

_BUCKET = "date_trunc(CAST(:bucket AS text), {}, 'UTC')"
_OF_ALL_INPUTS = (
    _step(
        4,
        "'attempt.failed'",
        f"""attempt a WHERE {_of_part("a")}
    GROUP BY {_BUCKET.format("a.ended_at")}, a.status, a.worker, a.error_class""",
        at="min(a.ended_at)",
        until="max(a.ended_at)",
        n="hashtextextended(concat_ws(' ', a.status, a.worker, a.error_class), 0)",
        ordinal="min(a.ordinal)",
        last_ordinal="max(a.ordinal)",
        inputs="count(*)",
        outcome=_OUTCOME,
        worker="a.worker",
        error_class="a.error_class",
        error_message="min(a.error_message)",
        elapsed_ms="avg(a.elapsed_ms)",
        next_at="min(a.next_at)",
    ),
    _step(
        5,
        "'input.died'",
        f"""dead_letter d WHERE {_of_part("d")}
    GROUP BY {_BUCKET.format("d.died_at")}, d.fingerprint""",
        at="min(d.died_at)",
        until="max(d.died_at)",
        n="hashtextextended(d.fingerprint, 0)",
        ordinal="min(d.ordinal)",
        last_ordinal="max(d.ordinal)",
        inputs="count(*)",
        error_class="min(d.error_class)",
        error_message="min(d.error_message)",
        fingerprint="d.fingerprint",
    ),
    _step(
        6,
        "'input.settled'",
        f"""input i WHERE {_of_part("i")} AND {_FINAL}
    GROUP BY {_BUCKET.format("i.settled_at")}, i.status""",
        at="min(i.settled_at)",
        until="max(i.settled_at)",
        n="hashtextextended(i.status, 0)",
        ordinal="min(i.ordinal)",
        last_ordinal="max(i.ordinal)",
        inputs="count(*)",
        outcome="i.status",
        elapsed_ms="avg(i.elapsed_ms)",
    ),
)


# Where live entries stand now. When one was claimed, held or parked is not kept.
_LIVE = """
SELECT e.id, e.first_ordinal, e.last_ordinal, e.unfinished, s.type,
       CASE s.type WHEN 'entry.relayed' THEN e.sent_at WHEN 'entry.due' THEN e.available_at
                   WHEN 'lease.ends' THEN e.locked_until
                   WHEN 'lease.lapsed' THEN e.locked_until END AS at,
       CASE WHEN e.state = 'CLAIMED' THEN e.locked_by END AS worker,
       CASE WHEN e.state = 'CLAIMED' THEN e.epoch END AS epoch,
       CASE s.type WHEN 'entry.held' THEN 'job is ' || j.status
                   WHEN 'entry.parked' THEN e.parked_reason
                   ELSE CASE WHEN e.state IN ('PENDING', 'SENT') AND {long_due}
                             THEN CAST(:idle AS text) END END AS because
FROM outbox e JOIN target j ON j.id = e.job_id
CROSS JOIN LATERAL (
    SELECT CASE WHEN e.state = 'SENT' THEN 'entry.relayed'
                WHEN e.state = 'PARKED' THEN 'entry.parked'
                WHEN e.state = 'CLAIMED' AND e.locked_until > now() THEN 'lease.ends'
                WHEN e.state = 'CLAIMED' THEN 'lease.lapsed'
                WHEN e.state = 'PENDING' AND j.status IN ('SUBMITTED', 'RUNNING')
                THEN 'entry.due' ELSE 'entry.held' END AS type
) s
WHERE e.type = 'inputs' AND {chosen}
"""
_LIVE_OF_PART = _LIVE.format(chosen=_of_part("e", "first_ordinal"), long_due=IS_LONG_DUE)
_LIVE_OF_ONE = _LIVE.format(
    long_due=IS_LONG_DUE,
    chosen="e.id = (SELECT i.entry_id FROM input i"
    f" WHERE i.job_id = {_OF_JOB} AND i.ordinal = {_ONE})",
)
_OF_EACH_ENTRY = _step(
    7,
    "e.type",
    "live e",
    at="e.at",
    n="e.id",
    ordinal="e.first_ordinal",
    last_ordinal="e.last_ordinal",
    inputs="e.unfinished",
    worker="e.worker",
    entry_id="e.id",
    epoch="e.epoch",
    because="e.because",
)
_OF_ALL_ENTRIES = _step(
    7,
    "e.type",
    "live e GROUP BY e.type, e.worker, e.because",
    at="min(e.at)",
    until="max(e.at)",
    n="hashtextextended(concat_ws(' ', e.type, e.worker, e.because), 0)",
    ordinal="min(e.first_ordinal)",
    last_ordinal="max(e.last_ordinal)",
    inputs="sum(e.unfinished)",
    worker="e.worker",
    because="e.because",
)

# What has no time comes last: it is so now, and since when is not kept.
_ORDER = "coalesce(at, '9999-12-31T00:00:00Z'), rank, coalesce(ordinal, -1), coalesce(n, 0)"


def _story(live: str, *steps: str) -> TextClause:
    return sa.text(
        f"""
WITH target AS MATERIALIZED (
    SELECT * FROM job WHERE id = {_OF_JOB}
), beginning AS (
    SELECT * FROM target WHERE CAST(:begins AS boolean)
), ending AS (
    SELECT * FROM target WHERE CAST(:ends AS boolean)
), live AS MATERIALIZED ({live}
), step AS MATERIALIZED (
    {f"{chr(10)}    UNION ALL{chr(10)}    ".join(steps)}
), told AS (
    SELECT step.*, at > now() AS is_expected,
           extract(epoch FROM at - lag(at) OVER (ORDER BY {_ORDER})) * 1000 AS since_ms,
           coalesce(at, '9999-12-31T00:00:00Z') AS place_at,
           coalesce(ordinal, -1) AS place_ordinal, coalesce(n, 0) AS place_n
    FROM step
)
SELECT * FROM told
WHERE (place_at, rank, place_ordinal, place_n)
    > (CAST(:after_at AS timestamptz), CAST(:after_rank AS integer),
       CAST(:after_ordinal AS integer), CAST(:after_n AS bigint))
ORDER BY place_at, rank, place_ordinal, place_n
LIMIT CAST(:most AS integer)
"""
    )


_ONE_INPUT = _story(_LIVE_OF_ONE, *_OF_THE_JOB, *_OF_EACH_INPUT, _OF_EACH_ENTRY)
_EACH = _story(_LIVE_OF_PART, *_OF_THE_JOB, *_OF_EACH_INPUT, _OF_EACH_ENTRY)
_GROUPED = _story(_LIVE_OF_PART, *_OF_THE_JOB, *_OF_ALL_INPUTS, _OF_ALL_ENTRIES)


def list_steps(
    job_id: UUID,
    part: Part,
    *,
    ordinal: int | None,
    bucket: str | None,
    after: Place,
    most: int,
    idle: str | None = None,
) -> TextClause:
    """List the steps of a part of a job, or of one input of it, in order of time.

    With a ``bucket`` (minute, hour, day) what happened to inputs is summed up for each of them,
    else it is told one by one; an ``ordinal`` needs no bucket, and is its part. ``idle`` is why
    what is due for half a minute waits, if nobody works on the kind. It reads no input,
    attempt, dead letter or entry outside of the part. Rows of (rank, type, the columns above;
    is_expected: its time is yet to come; since_ms: from the step before in the part; place_at,
    place_ordinal, place_n: with the rank, its place).
    """
    assert ordinal is None or bucket is None, "one input is told step by step"
    values = {
        "job_id": job_id,
        "ordinal": ordinal,
        **part._asdict(),
        "after_at": after.at,
        "after_rank": after.rank,
        "after_ordinal": after.ordinal,
        "after_n": after.n,
        "most": most,
        "idle": idle,
    }
    if ordinal is not None:
        return _ONE_INPUT.bindparams(**values)
    if bucket is None:
        return _EACH.bindparams(**values)
    return _GROUPED.bindparams(**values, bucket=bucket)
