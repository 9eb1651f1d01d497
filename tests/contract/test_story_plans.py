"""A story reads what is of its job, however much there is of others."""

import datetime as dt
from typing import Any
from uuid import UUID

import pytest

from infra.database import Database
from schema.ids import uuid7
from schema.statements.story import Part, Place, list_steps
from schema.statements.story_heads import list_heads
from tests.contract.test_statements import explain, scans
from tests.platform import Platform

BEGINNING = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TABLES = ("job", "input", "outbox", "attempt", "dead_letter", "redrive")


@pytest.fixture
async def job_id(platform: Platform) -> UUID:
    """One of 1,000 jobs of 100 inputs: an entry, ten attempts and two dead letters each."""
    jobs = [uuid7(unix_ms=1_767_225_600_000 + n * 60_000) for n in range(1_000)]
    await platform.rows(
        """
        WITH j AS (
            INSERT INTO job (id, key, owner_id, kind, status, max_attempts, request_date, total,
                             correlation_id)
            SELECT id, 'J20260101_' || lpad(n::text, 6, '0'), :owner, 'probe', 'RUNNING', 3,
                   current_date, 100, 'c' || n
            FROM unnest(CAST(:ids AS uuid[])) WITH ORDINALITY AS u (id, n) RETURNING id),
        i AS (
            INSERT INTO input (job_id, ordinal, status, body, settled_at)
            SELECT j.id, n, 'SUCCEEDED', '1', now() FROM j, generate_series(0, 99) AS n),
        a AS (
            INSERT INTO attempt (job_id, ordinal, generation, attempt, status, worker, error_class,
                                 error_message)
            SELECT j.id, n, 0, 1, 'RETRY_WAIT', 'w', 'c', 'm' FROM j, generate_series(0, 9) AS n),
        d AS (
            INSERT INTO dead_letter (job_id, ordinal, owner_id, kind, attempts, worker,
                                     error_class, error_message, fingerprint, correlation_id)
            SELECT j.id, n, :owner, 'probe', 1, 'w', 'c', 'm', 'f', 'c'
            FROM j, generate_series(0, 1) AS n)
        INSERT INTO outbox (type, job_id, owner_id, kind, first_ordinal, last_ordinal, unfinished,
                            correlation_id)
        SELECT 'inputs', j.id, :owner, 'probe', 0, 99, 1, 'c' FROM j RETURNING id
        """,
        owner=platform.owner_id,
        ids=jobs,
    )
    await platform.rows(
        "INSERT INTO redrive (id, owner_id, requested_by, source, filter)"
        " SELECT id, :owner, 'x', 'job', jsonb_build_object('job', id)"
        " FROM unnest(CAST(:ids AS uuid[])) AS u (id) RETURNING id",
        owner=platform.owner_id,
        ids=jobs,
    )
    await platform.rows("ANALYZE")
    return jobs[-10]


BEGIN: dict[str, Any] = {"after": Place(BEGINNING, 0, -1, 0), "most": 101}


async def test_a_story_finds_its_rows_through_keys(
    database: Database, job_id: UUID, subtests: pytest.Subtests
) -> None:
    whole, one = Part(0, 100, begins=True, ends=True), Part(7, 8, begins=True, ends=True)
    for part, ordinal, bucket in ((whole, None, "minute"), (whole, None, None), (one, 7, None)):
        with subtests.test(ordinal=ordinal, bucket=bucket):
            statement = list_steps(job_id, part, ordinal=ordinal, bucket=bucket, **BEGIN)
            nodes = await explain(database, statement)
            assert not [t for t in TABLES if "Seq Scan" in scans(nodes, t)]
            assert scans(nodes, "redrive") == {"redrive_job"}
    with subtests.test("correlation"):
        statement = list_heads(
            "c77", owner_id=None, from_time=BEGINNING, from_id=UUID(int=0), most=11
        )
        assert scans(await explain(database, statement), "job") == {"job_correlation"}


async def test_a_part_of_a_large_job_reads_what_happened_in_it_alone(
    database: Database, platform: Platform, job_id: UUID
) -> None:
    """Of a job of 1,000,000 inputs, a page of one step read them all."""
    for statement in (
        "INSERT INTO input (job_id, ordinal, status, body, settled_at)"
        " SELECT :job, n, 'SUCCEEDED', '1', now() FROM generate_series(100, 29999) AS n",
        "INSERT INTO attempt (job_id, ordinal, generation, attempt, status, worker, error_class,"
        " error_message) SELECT :job, n, 0, 1, 'RETRY_WAIT', 'w', 'c', 'm'"
        " FROM generate_series(100, 29999) AS n",
        "INSERT INTO dead_letter (job_id, ordinal, owner_id, kind, attempts, worker, error_class,"
        " error_message, fingerprint, died_at, correlation_id)"
        " SELECT :job, n, owner_id, 'probe', 1, 'w', 'c', 'm', 'f',"
        " now() + n * interval '1 ms', 'c'"
        " FROM job, generate_series(100, 29999) AS n WHERE id = :job",
        "INSERT INTO outbox (type, job_id, owner_id, kind, first_ordinal, last_ordinal,"
        " unfinished, correlation_id) SELECT 'inputs', id, owner_id, 'probe', n, n, 1, 'c'"
        " FROM job, generate_series(100, 29999) AS n WHERE id = :job",
    ):
        await platform.rows(f"{statement} RETURNING 1 AS one", job=job_id)
    await platform.rows("ANALYZE")
    part = Part(10_000, 10_500, begins=False, ends=False)
    nodes = await explain(
        database, list_steps(job_id, part, ordinal=None, bucket="minute", **BEGIN)
    )
    keys = {
        "input": "input_pkey",
        "attempt": "attempt_pkey",
        "dead_letter": "dead_letter_pkey",
        "outbox": "outbox_job",
    }
    for table, key in keys.items():
        assert key in scans(nodes, table)
        (condition,) = {node["Index Cond"] for node in nodes if node.get("Index Name") == key}
        assert "ordinal >= 10000" in condition
        assert "ordinal < 10500" in condition
