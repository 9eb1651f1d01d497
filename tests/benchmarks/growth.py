"""Fills a database with what years leave behind, by SQL, as the product would have written it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.benchmarks.contest import say

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from tests.benchmarks.stage import Place

OWNERS = 20
FINISHED_INPUTS, WAITING_INPUTS, CHUNK = 100, 1_000, 100
# Of ten jobs one has failed, with ten dead inputs: one input in a hundred lies in the DLQ.
_BATCH_JOBS = 10_000
# Rows, indexes and WAL.
_BYTES_AN_INPUT = 1_500
_BODY = """jsonb_build_object('n', i, 'text', 'abcdefghijklmnopqrstuvwxyz0123456789')"""
# Ids that grow with time, as the product's do: what is new stands together in every index.
_ID = """CAST(lpad(to_hex(CAST(extract(epoch FROM at) * 1000 AS bigint)), 12, '0') || '7'
              || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15) AS uuid)"""

_FINISHED = f"""
WITH made AS (
    SELECT n, at, {_ID} AS id, ($3::uuid[])[1 + n % cardinality($3)] AS owner_id,
           CASE WHEN n % 10 = 0 THEN 10 ELSE 0 END AS dead
    FROM (SELECT n, now() - ($4 - n) * interval '10 seconds' AS at
          FROM generate_series($1::integer, $2) AS n) AS times
), jobs AS (
    INSERT INTO job (id, key, owner_id, kind, status, max_attempts, request_date, requested_at,
                     started_at, finished_at, total, succeeded, dlq, error_message, correlation_id)
    SELECT id, 'J20200101_' || lpad(n::text, 8, '0'), owner_id, 'noop',
           CASE WHEN dead > 0 THEN 'FAILED' ELSE 'COMPLETED' END, 5, at::date, at, at, at,
           {FINISHED_INPUTS}, {FINISHED_INPUTS} - dead, dead, CASE WHEN dead > 0 THEN 'no' END,
           'grown-' || n
    FROM made
), inputs AS (
    INSERT INTO input (job_id, ordinal, status, attempts, elapsed_ms, settled_at, body,
                       error_class, error_message)
    SELECT id, i, CASE WHEN i < dead THEN 'DLQ' ELSE 'SUCCEEDED' END, 1, 1, at, {_BODY},
           CASE WHEN i < dead THEN 'ValueError' END, CASE WHEN i < dead THEN 'no' END
    FROM made CROSS JOIN generate_series(0, {FINISHED_INPUTS} - 1) AS i
), attempts AS (
    INSERT INTO attempt (job_id, ordinal, generation, attempt, status, worker, error_class,
                         error_message, elapsed_ms, ended_at)
    SELECT id, i, 0, 1, 'DLQ', 'grown', 'ValueError', 'no', 1, at
    FROM made CROSS JOIN generate_series(0, dead - 1) AS i
)
INSERT INTO dead_letter (job_id, ordinal, owner_id, kind, attempts, worker, error_class,
                         error_message, fingerprint, died_at, correlation_id)
SELECT id, i, owner_id, 'noop', 1, 'grown', 'ValueError', 'no', md5((n % 100)::text), at,
       'grown-' || n
FROM made CROSS JOIN generate_series(0, dead - 1) AS i
"""
_WAITING = f"""
WITH made AS (
    SELECT n, now() AS at, ($3::uuid[])[1 + n % cardinality($3)] AS owner_id
    FROM generate_series($1::integer, $2) AS n
), jobs AS (
    INSERT INTO job (id, key, owner_id, kind, status, max_attempts, request_date, total,
                     correlation_id)
    SELECT {_ID}, 'J20200102_' || lpad(n::text, 8, '0'), owner_id, 'noop', 'SUBMITTED', 5,
           at::date, {WAITING_INPUTS}, 'waits-' || n
    FROM made
    RETURNING id, owner_id, correlation_id
), entries AS (
    INSERT INTO outbox (type, job_id, owner_id, kind, first_ordinal, last_ordinal, unfinished,
                        turn_at, correlation_id)
    SELECT 'inputs', id, owner_id, 'noop', f, f + {CHUNK} - 1, {CHUNK},
           now() + f / {CHUNK} * interval '1 second', correlation_id
    FROM jobs CROSS JOIN generate_series(0, {WAITING_INPUTS} - 1, {CHUNK}) AS f
    RETURNING id, job_id, first_ordinal
)
INSERT INTO input (job_id, ordinal, body, entry_id)
SELECT job_id, i, {_BODY}, id
FROM entries CROSS JOIN generate_series(first_ordinal, first_ordinal + {CHUNK} - 1) AS i
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How many inputs have finished and how many wait."""

    finished: int
    waiting: int

    def check_room(self, folder: Path) -> None:
        """Raise unless the disk has room for it."""
        free = shutil.disk_usage(folder).free
        needed = (self.finished + self.waiting) * _BYTES_AN_INPUT
        if free < needed:
            msg = f"{free:,} bytes are free under {folder}; this takes up to {needed:,}"
            raise OSError(msg)


async def owners(place: Place) -> list[UUID]:
    """Add owners to the place's own; give all of them, that one first."""
    rows = await place.connection.fetch(
        "INSERT INTO owner (id, name) SELECT gen_random_uuid(), 'grown-' || n"
        f" FROM generate_series(2, {OWNERS}) AS n RETURNING id"
    )
    return [place.owner_id, *(row["id"] for row in rows)]


async def fill(place: Place, size: Size) -> list[UUID]:
    """Fill the place, statistics and visibility maps included; give the owners."""
    connection = place.connection
    of_all = await owners(place)
    await connection.execute("SET synchronous_commit = off")
    for statement, jobs in (
        (_FINISHED, size.finished // FINISHED_INPUTS),
        (_WAITING, size.waiting // WAITING_INPUTS),
    ):
        for first in range(1, jobs + 1, _BATCH_JOBS):
            last = min(first + _BATCH_JOBS - 1, jobs)
            given = [first, last, of_all, jobs] if "$4" in statement else [first, last, of_all]
            await connection.execute(statement, *given)
            say(f"  {place.name}: {last:,} of {jobs:,} jobs")
    await connection.execute("RESET synchronous_commit")
    await connection.execute("VACUUM (ANALYZE)")
    await connection.execute("CHECKPOINT")
    return of_all
