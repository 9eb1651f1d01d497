"""Statements of the doctor: each finds breaches of one invariant, as rows of (job, detail).

Every check holds between any two commits, so that within one snapshot running work causes no false
alarm; those that are not ``always`` wait for a service to act and allow it some time. A job that is
being pruned is passed over: its rows go in steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from sqlalchemy.sql.elements import TextClause

# Set in for every alias that names a job: nothing, or the one job that was asked for.
_ONE_JOB = "AND {column} = (SELECT id FROM job WHERE key = CAST(:key AS text))"
_SLOTS = {"J": "j.id", "I": "i.job_id", "O": "o.job_id", "D": "d.job_id", "A": "a.job_id"}


@dataclass(frozen=True, slots=True)
class Check:
    """One invariant: what is wrong where rows are found, and what to do about it."""

    name: str
    wrong: str
    remedy: str
    sql: str
    always: bool = True

    def statement(self, *, key: str | None, patience_seconds: float, most: int) -> TextClause:
        """Give the statement, for all jobs or for one, that finds up to ``most`` breaches."""
        values: dict[str, object] = {"most": most}
        slots = dict.fromkeys(_SLOTS, "")
        if key is not None:
            slots = {slot: _ONE_JOB.format(column=column) for slot, column in _SLOTS.items()}
            values["key"] = key
        if ":patience_seconds" in self.sql:
            values["patience_seconds"] = patience_seconds
        text = self.sql.format(**slots) + "\nLIMIT CAST(:most AS integer)"
        return sa.text(text).bindparams(**values)


_LATE = "now() - CAST(:patience_seconds AS double precision) * interval '1 second'"

CHECKS: tuple[Check, ...] = (
    Check(
        "counters",
        "the job's counters differ from its rows",
        "keep the logs of this job; the finalizer recounts a running job that has no entry left",
        """
SELECT j.key AS job,
       'counters ' || (j.total, j.succeeded, j.skipped, j.not_found, j.dlq, j.cancelled, j.expired,
                       j.files_generated, j.files_reused)::text
       || ', rows ' || (r.total, r.succeeded, r.skipped, r.not_found, r.dlq, r.cancelled, r.expired,
                        r.files_generated, r.files_reused)::text AS detail
FROM job j LEFT JOIN (
    SELECT i.job_id, count(*)::integer AS total,
           count(*) FILTER (WHERE i.status = 'SUCCEEDED')::integer AS succeeded,
           count(*) FILTER (WHERE i.status = 'SKIPPED')::integer AS skipped,
           count(*) FILTER (WHERE i.status = 'NOT_FOUND')::integer AS not_found,
           count(*) FILTER (WHERE i.status = 'DLQ')::integer AS dlq,
           count(*) FILTER (WHERE i.status = 'CANCELLED')::integer AS cancelled,
           count(*) FILTER (WHERE i.status = 'EXPIRED')::integer AS expired,
           count(*) FILTER (WHERE NOT i.reused)::integer AS files_generated,
           count(*) FILTER (WHERE i.reused)::integer AS files_reused
    FROM input i WHERE true {I} GROUP BY i.job_id
) r ON r.job_id = j.id
WHERE j.pruned_at IS NULL {J}
  AND (j.total, j.succeeded, j.skipped, j.not_found, j.dlq, j.cancelled, j.expired,
       j.files_generated, j.files_reused)
      IS DISTINCT FROM (r.total, r.succeeded, r.skipped, r.not_found, r.dlq, r.cancelled, r.expired,
                        r.files_generated, r.files_reused)""",
    ),
    Check(
        "unnamed input",
        "an unfinished input is named by no live entry: it would be forgotten",
        "cancel and redrive the input, and report it: no commit should leave this behind",
        """
SELECT j.key AS job, 'input ' || i.ordinal || ' is ' || i.status || ', entry '
                     || coalesce(i.entry_id::text, 'none') AS detail
FROM input i JOIN job j ON j.id = i.job_id
LEFT JOIN outbox o ON o.id = i.entry_id AND o.job_id = i.job_id AND o.type = 'inputs'
                  AND i.ordinal BETWEEN o.first_ordinal AND o.last_ordinal
WHERE i.status IN ('PENDING', 'RETRY_WAIT') AND o.id IS NULL AND j.pruned_at IS NULL
  AND (i.ordering_group IS NULL OR i.entry_id IS NOT NULL) {I}""",
    ),
    Check(
        "left behind",
        "the job has ended and was swept, but inputs of it are unfinished",
        "set job.sweeping to true: the sweeper ends them",
        """
SELECT j.key AS job, 'input ' || i.ordinal || ' is ' || i.status || ', job ' || j.status AS detail
FROM job j JOIN input i ON i.job_id = j.id
WHERE j.finished_at IS NOT NULL AND NOT j.sweeping AND j.pruned_at IS NULL
  AND i.status IN ('PENDING', 'RETRY_WAIT') {J}""",
    ),
    Check(
        "miscounted entry",
        "an entry counts its unfinished inputs wrongly",
        "the entry ends too early or never; report it, and cancel and redrive its job",
        """
SELECT j.key AS job, 'entry ' || o.id || ' counts ' || o.unfinished || ', names '
                     || count(i.ordinal) AS detail
FROM outbox o LEFT JOIN job j ON j.id = o.job_id
LEFT JOIN input i ON i.job_id = o.job_id AND i.entry_id = o.id
                 AND i.ordinal BETWEEN o.first_ordinal AND o.last_ordinal
WHERE o.type = 'inputs' {O}
GROUP BY j.key, o.id HAVING o.unfinished <> count(i.ordinal)""",
    ),
    Check(
        "dead letters",
        "inputs in DLQ and dead letters do not match",
        "a letter without its input can be deleted; an input without its letter can be redriven"
        " by its job",
        """
SELECT coalesce(j.key, d.job_id::text) AS job,
       CASE WHEN d.job_id IS NULL THEN 'input ' || i.ordinal || ' in DLQ has no letter'
            ELSE 'letter of input ' || d.ordinal || ', which is '
                 || coalesce(i.status, 'gone') END AS detail
FROM (SELECT i.* FROM input i WHERE i.status = 'DLQ' {I}) i
FULL JOIN (SELECT d.* FROM dead_letter d WHERE true {D}) d
  ON d.job_id = i.job_id AND d.ordinal = i.ordinal
LEFT JOIN job j ON j.id = coalesce(i.job_id, d.job_id)
WHERE (d.job_id IS NULL OR i.job_id IS NULL) AND j.pruned_at IS NULL""",
    ),
    Check(
        "misplaced entry",
        "an entry stands where its job's status does not want it, and nobody sweeps the job",
        "set job.sweeping to true: the sweeper moves it",
        """
SELECT j.key AS job, 'entry ' || o.id || ' is ' || o.state || ', job ' || j.status AS detail
FROM outbox o JOIN job j ON j.id = o.job_id
WHERE o.type = 'inputs' AND NOT j.sweeping
  AND CASE WHEN j.status = 'PAUSED' THEN o.state NOT IN ('HELD', 'PARKED')
           WHEN j.status IN ('SUBMITTED', 'RUNNING') THEN o.state = 'HELD'
           ELSE true END {O}""",
    ),
    Check(
        "unended job",
        "every input of a running job is final, but the job has not ended",
        "the finalizer ends it within a minute; if it stays, see the finalizer's logs",
        """
SELECT j.key AS job, 'running, ' || j.total || ' of ' || j.total || ' inputs final' AS detail
FROM job j
WHERE j.status IN ('SUBMITTED', 'RUNNING') {J}
  AND j.succeeded + j.skipped + j.not_found + j.dlq + j.cancelled + j.expired = j.total""",
    ),
    Check(
        "wrong end",
        "the job's end does not follow from its inputs",
        "report it; a redrive opens the job again and ends it anew",
        """
SELECT j.key AS job, j.status || ' with ' || j.dlq || ' inputs in DLQ' AS detail
FROM job j
WHERE j.pruned_at IS NULL
  AND ((j.status = 'FAILED' AND j.dlq = 0) OR (j.status = 'COMPLETED' AND j.dlq > 0)) {J}""",
    ),
    Check(
        "attempts over the cap",
        "an input has spent more attempts than its job allows",
        "report it with the input's attempts",
        """
SELECT j.key AS job, 'input ' || i.ordinal || ': ' || i.attempts || ' of ' || j.max_attempts
                     AS detail
FROM input i JOIN job j ON j.id = i.job_id
WHERE i.attempts > j.max_attempts {I}""",
    ),
    Check(
        "orphans",
        "rows whose job or input is gone",
        "they harm nobody and can be deleted; report how they came about",
        """
SELECT job_id::text AS job, detail FROM (
    SELECT i.job_id, 'input ' || i.ordinal || ' without a job' AS detail FROM input i
    WHERE NOT EXISTS (SELECT FROM job j WHERE j.id = i.job_id) {I}
    UNION ALL
    SELECT o.job_id, 'entry ' || o.id || ' without a job' FROM outbox o
    WHERE NOT EXISTS (SELECT FROM job j WHERE j.id = o.job_id) {O}
    UNION ALL
    SELECT a.job_id, 'attempt of input ' || a.ordinal || ', which is gone' FROM attempt a
    WHERE NOT EXISTS (SELECT FROM input i WHERE i.job_id = a.job_id AND i.ordinal = a.ordinal) {A}
) orphan""",
    ),
    Check(
        "ownerless job",
        "the job's owner is gone: no request shows it any more",
        "insert the owner again, under the id that the job names",
        """
SELECT j.key AS job, 'owner ' || j.owner_id AS detail
FROM job j WHERE NOT EXISTS (SELECT FROM owner w WHERE w.id = j.owner_id) {J}""",
    ),
    Check(
        "lapsed lease",
        "a lease ran out and nobody took the entry over",
        "see that a dispatcher runs, and its reaper's logs",
        f"""
SELECT j.key AS job, 'entry ' || o.id || ' of ' || o.locked_by || ' lapsed at ' || o.locked_until
                     AS detail
FROM outbox o LEFT JOIN job j ON j.id = o.job_id
WHERE o.state = 'CLAIMED' AND o.locked_until < {_LATE} {{O}}""",
        always=False,
    ),
    Check(
        "late entry",
        "an entry was due long ago and was not let in among the ready ones",
        "see that a dispatcher runs, or in outbox mode a consumer: each lets in what is due",
        f"""
SELECT j.key AS job, 'entry ' || o.id || ' was due at ' || o.available_at AS detail
FROM outbox o LEFT JOIN job j ON j.id = o.job_id
WHERE o.state = 'PENDING' AND o.deferred AND o.available_at < {_LATE} {{O}}""",
        always=False,
    ),
    Check(
        "lost message",
        "an entry was sent long ago and was neither claimed nor sent again",
        "see that a dispatcher runs, and its resender's logs",
        f"""
SELECT j.key AS job, 'entry ' || o.id || ' was sent at ' || o.sent_at AS detail
FROM outbox o LEFT JOIN job j ON j.id = o.job_id
WHERE o.state = 'SENT' AND o.sent_at < {_LATE} {{O}}""",
        always=False,
    ),
    Check(
        "stuck sweeping",
        "a job ended long ago and is still being swept",
        "see that a dispatcher runs, and its sweeper's logs",
        f"""
SELECT j.key AS job, j.status || ' since ' || j.finished_at AS detail
FROM job j WHERE j.sweeping AND j.finished_at < {_LATE} {{J}}""",
        always=False,
    ),
    Check(
        "unexpired job",
        "a job's time passed long ago, but it has not expired",
        "see that a dispatcher runs, and its expirer's logs",
        f"""
SELECT j.key AS job, j.status || ', expires at ' || j.expires_at AS detail
FROM job j
WHERE j.status IN ('SUBMITTED', 'RUNNING', 'PAUSED') AND j.expires_at < {_LATE} {{J}}""",
        always=False,
    ),
    Check(
        "parked entry",
        "an entry could not be sent and waits for an operator",
        "put right what parked_reason says, then reprocess the entry",
        """
SELECT j.key AS job, 'entry ' || o.id || ': ' || o.parked_reason AS detail
FROM outbox o LEFT JOIN job j ON j.id = o.job_id
WHERE o.state = 'PARKED' {O}""",
        always=False,
    ),
    Check(
        "parked message",
        "a message could not be read or delivered and waits for an operator",
        "read it in parked_message; reprocess or dismiss it",
        """
SELECT j.key AS job, 'message ' || d.id || ': ' || d.reason AS detail
FROM parked_message d LEFT JOIN job j ON j.id = d.job_id
WHERE d.resolved_at IS NULL {D}""",
        always=False,
    ),
)
