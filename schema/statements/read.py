"""Statements that readers use: one job, lists of jobs, pages of inputs, the pace of kinds.

Lists run newest first by (requested_at, id). A filter that no index serves looks at a bounded
window of rows per page, however rare its matches are: a page then tells where the window ended.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy.sql.elements import TextClause

# Running inputs are read off the leased entries: O(entries) of one job, by index. There are no more
# inputs than the limit lets through, but Postgres does not know that: beside one very large job it
# takes each for large, and would read the whole table. That helps while the limit is below what it
# takes a job for: it does at the default.
_JOB = sa.text(
    """
SELECT j.id, j.key, o.name AS owner, j.kind, j.status, j.priority, j.max_attempts, j.fail_fast,
       j.tolerated, j.metadata::text AS metadata, j.requested_at, j.scheduled_for, j.expires_at,
       j.started_at, j.finished_at, j.pruned_at, j.total, j.succeeded, j.skipped, j.not_found,
       j.dlq, j.cancelled, j.expired, j.files_generated, j.files_reused, j.error_message,
       j.correlation_id,
       (SELECT coalesce(sum(e.unfinished), 0)::integer FROM outbox e
        WHERE e.job_id = j.id AND e.type = 'inputs' AND e.state = 'CLAIMED'
          AND e.locked_until > now()) AS running,
       CASE WHEN d.size <= CAST(:most_bytes AS bigint) THEN d.bodies END AS bodies,
       CASE WHEN d.size <= CAST(:most_bytes AS bigint) THEN d.states END AS states,
       CASE WHEN d.size <= CAST(:most_bytes AS bigint) THEN d.s3_paths END AS s3_paths,
       CASE WHEN d.size <= CAST(:most_bytes AS bigint) THEN d.error_classes END AS error_classes,
       CASE WHEN d.size <= CAST(:most_bytes AS bigint) THEN d.error_messages END AS error_messages,
       d.size > CAST(:most_bytes AS bigint) AS is_large
FROM job j JOIN owner o ON o.id = j.owner_id
CROSS JOIN LATERAL (
    SELECT array_agg(s.body::text ORDER BY s.ordinal) AS bodies,
           array_agg(s.state ORDER BY s.ordinal) AS states,
           array_agg(CASE jsonb_typeof(s.result -> 's3Path')
                     WHEN 'string' THEN s.result ->> 's3Path' END ORDER BY s.ordinal) AS s3_paths,
           array_agg(s.error_class ORDER BY s.ordinal) AS error_classes,
           array_agg(s.error_message ORDER BY s.ordinal) AS error_messages,
           sum(octet_length(s.body::text) + coalesce(octet_length(s.result ->> 's3Path'), 0)
               + coalesce(octet_length(s.error_class) + octet_length(s.error_message), 0)) AS size
    FROM (
        SELECT * FROM input_state t
        WHERE t.job_id = j.id AND j.total <= CAST(:most_inputs AS integer)
        ORDER BY t.ordinal LIMIT CAST(:most_inputs AS integer)
    ) s
) d
WHERE j.key = CAST(:key AS text)
  AND (CAST(:owner_id AS uuid) IS NULL OR j.owner_id = CAST(:owner_id AS uuid))
"""
)

_LOCATE = sa.text(
    """
SELECT id, owner_id, total, pruned_at FROM job
WHERE key = CAST(:key AS text)
  AND (CAST(:owner_id AS uuid) IS NULL OR owner_id = CAST(:owner_id AS uuid))
"""
)

_KEY = sa.text("SELECT key FROM job WHERE id = CAST(:id AS uuid)")

_OWNER = sa.text("SELECT id FROM owner WHERE name = CAST(:name AS text)")

_INPUTS = sa.text(
    """
SELECT s.ordinal, s.state, s.body::text AS body, s.result::text AS result, s.reused, s.attempts,
       s.error_class, s.error_message, s.elapsed_ms, s.settled_at, s.available_at
FROM input_state s
WHERE s.job_id = CAST(:job_id AS uuid)
  AND s.ordinal > CAST(:after AS integer) AND s.ordinal <= CAST(:until AS integer)
  AND (CAST(:states AS text[]) IS NULL OR s.state = ANY(CAST(:states AS text[])))
ORDER BY s.ordinal
LIMIT CAST(:most AS integer)
"""
)

_PLACE = """
requested_at >= CAST(:requested_from AS timestamptz)
      AND requested_at < CAST(:requested_to AS timestamptz)
      AND (requested_at, id) < (CAST(:before_time AS timestamptz), CAST(:before_id AS uuid))
"""
_NEWEST = "ORDER BY requested_at DESC, id DESC LIMIT CAST(:window AS integer)"
_SEEN = "id, requested_at, status, kind, owner_id"

# One way of scanning for each index: what remains is filtered within the window.

_SCANS = {
    "all": f"SELECT {_SEEN} FROM job WHERE {_PLACE} {_NEWEST}",
    "owner": f"SELECT {_SEEN} FROM job WHERE owner_id = CAST(:owner_id AS uuid) AND {_PLACE}"
    f" {_NEWEST}",
    "owner_status": f"""
    SELECT s.* FROM unnest(CAST(:statuses AS text[])) AS wanted (status)
    CROSS JOIN LATERAL (
        SELECT {_SEEN} FROM job
        WHERE owner_id = CAST(:owner_id AS uuid) AND status = wanted.status AND {_PLACE} {_NEWEST}
    ) s {_NEWEST}""",
    "correlation": f"SELECT {_SEEN} FROM job"
    f" WHERE correlation_id = CAST(:correlation_id AS text) AND {_PLACE} {_NEWEST}",
}

_PAGE = """
WITH scanned AS MATERIALIZED ({scan}
), page AS (
    SELECT id, requested_at FROM scanned
    WHERE (CAST(:owner_id AS uuid) IS NULL OR owner_id = CAST(:owner_id AS uuid))
      AND (CAST(:statuses AS text[]) IS NULL OR status = ANY(CAST(:statuses AS text[])))
      AND (CAST(:kinds AS text[]) IS NULL OR kind = ANY(CAST(:kinds AS text[])))
    ORDER BY requested_at DESC, id DESC LIMIT CAST(:most AS integer)
), last AS (
    SELECT requested_at, id, (SELECT count(*) FROM scanned) AS many
    FROM scanned ORDER BY requested_at, id LIMIT 1
)
SELECT j.id, j.key, o.name AS owner, j.kind, j.status, j.priority, j.total, j.succeeded, j.skipped,
       j.not_found, j.dlq, j.cancelled, j.expired, j.files_generated, j.files_reused,
       j.error_message, j.correlation_id, j.requested_at, j.started_at, j.finished_at,
       last.many AS scanned, last.requested_at AS last_requested_at, last.id AS last_id
FROM last LEFT JOIN (page JOIN job j ON j.id = page.id JOIN owner o ON o.id = j.owner_id) ON true
ORDER BY j.requested_at DESC, j.id DESC
"""
_PAGES = {name: sa.text(_PAGE.format(scan=scan)) for name, scan in _SCANS.items()}

_PAST = sa.text(
    """
SELECT coalesce(CAST(:scheduled_for AS timestamptz) <= now(), false) AS scheduled_for,
       coalesce(CAST(:expires_at AS timestamptz) <= now(), false) AS expires_at
"""
)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to list; nothing set: all. ``before`` is a place in the order, exclusive."""

    owner_id: UUID | None
    statuses: tuple[str, ...] | None
    kinds: tuple[str, ...] | None
    correlation_id: str | None
    requested_from: dt.datetime
    requested_to: dt.datetime
    before_time: dt.datetime
    before_id: UUID

    def scan(self) -> str:
        """Name the scan that serves it best."""
        if self.correlation_id is not None:
            return "correlation"
        if self.owner_id is None:
            return "all"
        return "owner" if self.statuses is None else "owner_status"

    def is_selective(self) -> bool:
        """Say whether the scan may pass over rows."""
        by_status = self.statuses is not None and self.scan() != "owner_status"
        by_owner = self.owner_id is not None and self.scan() == "correlation"
        return by_status or by_owner or self.kinds is not None


def find_job(key: str, *, owner_id: UUID | None, most_inputs: int, most_bytes: int) -> TextClause:
    """Find a job (of an owner, or of anyone) with the arrays of its inputs if they are few.

    Nor may they hold more than ``most_bytes``; ``is_large`` says that they do.
    """
    return _JOB.bindparams(
        key=key, owner_id=owner_id, most_inputs=most_inputs, most_bytes=most_bytes
    )


def locate_job(key: str, *, owner_id: UUID | None) -> TextClause:
    """Find (id, owner_id, total, pruned_at) of a job."""
    return _LOCATE.bindparams(key=key, owner_id=owner_id)


def find_job_key(job_id: UUID) -> TextClause:
    """Find the (key) of a job by id."""
    return _KEY.bindparams(id=job_id)


def find_owner(name: str) -> TextClause:
    """Find the (id) of an owner by name."""
    return _OWNER.bindparams(name=name)


def list_inputs(
    job_id: UUID, *, after: int, until: int, states: Sequence[str] | None, most: int
) -> TextClause:
    """List inputs with ordinals in (after, until], in order, of these states if any are given."""
    return _INPUTS.bindparams(
        job_id=job_id,
        after=after,
        until=until,
        states=list(states) if states is not None else None,
        most=most,
    )


def list_jobs(which: JobFilter, *, most: int, window: int) -> TextClause:
    """List up to ``most`` jobs among the next ``window`` ones.

    Each row also says how many were looked at and where the last of them stands; a window
    without a match gives one row whose other columns are null; no row: nothing is left.
    """
    values = asdict(which) | {"most": most, "window": window}
    values["statuses"] = list(which.statuses) if which.statuses is not None else None
    values["kinds"] = list(which.kinds) if which.kinds is not None else None
    scan = which.scan()
    if scan != "correlation":
        del values["correlation_id"]
    return _PAGES[scan].bindparams(**values)


def tell_past(*, scheduled_for: dt.datetime | None, expires_at: dt.datetime | None) -> TextClause:
    """Say of each time whether it is past by the database's clock."""
    return _PAST.bindparams(scheduled_for=scheduled_for, expires_at=expires_at)
