"""Statements that read the DLQ: which letters match, page by page, and what they have in common.

A letter stands in it from the commit that gave its input up until the redrive that takes it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    import datetime as dt
    from uuid import UUID

    from sqlalchemy.sql.elements import TextClause

_MATCHES = """
(CAST(:kind AS text) IS NULL OR d.kind = CAST(:kind AS text))
  AND (CAST(:fingerprint AS text) IS NULL OR d.fingerprint = CAST(:fingerprint AS text))
  AND (CAST(:error_class AS text) IS NULL OR d.error_class = CAST(:error_class AS text))
  AND d.died_at >= coalesce(CAST(:died_from AS timestamptz), '-infinity')
  AND d.died_at < coalesce(CAST(:died_to AS timestamptz), 'infinity')
"""

# One way of scanning for each index; a job's letters are filtered by owner once they are found.
SCANS = {
    "all": f"dead_letter d WHERE {_MATCHES}",
    "owner": f"dead_letter d WHERE d.owner_id = CAST(:owner_id AS uuid) AND {_MATCHES}",
    "job": f"""dead_letter d WHERE d.job_id = CAST(:job_id AS uuid)
  AND (CAST(:owner_id AS uuid) IS NULL OR d.owner_id = CAST(:owner_id AS uuid)) AND {_MATCHES}""",
}

_PAGE = """
WITH page AS MATERIALIZED (
    SELECT d.* FROM {scan}
      AND (d.died_at, d.job_id, d.ordinal)
        < (coalesce(CAST(:before_time AS timestamptz), 'infinity'),
           coalesce(CAST(:before_job AS uuid), 'ffffffff-ffff-ffff-ffff-ffffffffffff'),
           coalesce(CAST(:before_ordinal AS integer), 2147483647))
    ORDER BY d.died_at DESC, d.job_id DESC, d.ordinal DESC
    LIMIT CAST(:most AS integer)
)
SELECT d.job_id, j.key AS job_key, w.name AS owner, d.ordinal, d.kind, d.attempts, d.worker,
       d.error_class, d.error_message, d.fingerprint, d.died_at, d.correlation_id,
       i.body::text AS body, i.generation, j.max_attempts
FROM page d
JOIN job j ON j.id = d.job_id
JOIN owner w ON w.id = d.owner_id
JOIN input i ON i.job_id = d.job_id AND i.ordinal = d.ordinal
ORDER BY d.died_at DESC, d.job_id DESC, d.ordinal DESC
"""
_PAGES = {name: sa.text(_PAGE.format(scan=scan)) for name, scan in SCANS.items()}

_COUNTS = {
    name: sa.text(
        "SELECT count(*)::integer AS many FROM "
        f"(SELECT FROM {scan} LIMIT CAST(:most AS integer)) AS matching"
    )
    for name, scan in SCANS.items()
}

_CAUSE = """
SELECT fingerprint, min(kind) AS kind, min(error_class) AS error_class,
       min(error_message) AS error_message, count(*)::integer AS many,
       count(DISTINCT job_id)::integer AS jobs, min(died_at) AS first_died_at,
       max(died_at) AS last_died_at
FROM (
    SELECT d.* FROM {scan}
    ORDER BY d.died_at DESC LIMIT CAST(:window AS integer)
) AS recent
GROUP BY fingerprint
ORDER BY many DESC, fingerprint
LIMIT CAST(:most AS integer)
"""
_CAUSES = {name: sa.text(_CAUSE.format(scan=scan)) for name, scan in SCANS.items()}

_LOCATE = sa.text(
    """
SELECT j.id AS job_id, j.key AS job_key, d.ordinal
FROM job j JOIN dead_letter d ON d.job_id = j.id AND d.ordinal = CAST(:ordinal AS integer)
WHERE j.key = CAST(:key AS text)
  AND (CAST(:owner_id AS uuid) IS NULL OR j.owner_id = CAST(:owner_id AS uuid))
"""
)


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which dead letters; what is null does not narrow. ``died_to`` is exclusive."""

    owner_id: UUID | None = None
    kind: str | None = None
    job_id: UUID | None = None
    fingerprint: str | None = None
    died_from: dt.datetime | None = None
    died_to: dt.datetime | None = None
    error_class: str | None = None

    def scan(self) -> str:
        """Name the scan that serves it best."""
        if self.job_id is not None:
            return "job"
        return "all" if self.owner_id is None else "owner"

    def values(self) -> dict[str, Any]:
        """Give the values that the scan asks for."""
        values: dict[str, Any] = {
            "kind": self.kind,
            "fingerprint": self.fingerprint,
            "error_class": self.error_class,
            "died_from": self.died_from,
            "died_to": self.died_to,
        }
        if self.scan() != "all":
            values["owner_id"] = self.owner_id
        if self.scan() == "job":
            values["job_id"] = self.job_id
        return values


def list_dead_letters(
    which: LetterFilter, *, before: tuple[dt.datetime, UUID, int] | None, most: int
) -> TextClause:
    """List letters, newest first, from before (died_at, job_id, ordinal).

    Rows of (job_id, job_key, owner, ordinal, kind, attempts, worker, error_class, error_message,
    fingerprint, died_at, correlation_id, body, generation, max_attempts).
    """
    time, job_id, ordinal = before or (None, None, None)
    return _PAGES[which.scan()].bindparams(
        **which.values(), before_time=time, before_job=job_id, before_ordinal=ordinal, most=most
    )


def count_dead_letters(which: LetterFilter, *, most: int) -> TextClause:
    """Count letters, up to ``most``: (many)."""
    return _COUNTS[which.scan()].bindparams(**which.values(), most=most)


def list_causes(which: LetterFilter, *, window: int, most: int) -> TextClause:
    """Group the newest ``window`` letters by fingerprint, the commonest cause first.

    Rows of (fingerprint, kind, error_class, error_message, many, jobs, first_died_at,
    last_died_at); class and message are those of one of them.
    """
    return _CAUSES[which.scan()].bindparams(**which.values(), window=window, most=most)


def locate_dead_letter(key: str, ordinal: int, *, owner_id: UUID | None) -> TextClause:
    """Find one letter: (job_id, job_key, ordinal)."""
    return _LOCATE.bindparams(key=key, ordinal=ordinal, owner_id=owner_id)
