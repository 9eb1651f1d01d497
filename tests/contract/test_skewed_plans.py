"""Beside one very large job, statements about a small one still read only what is its own."""

import asyncio
from collections.abc import Iterator
from uuid import UUID

import pytest
from sqlalchemy.sql.elements import TextClause

from infra.database import Database
from schema.statements.bound import Bound
from schema.statements.claim import claim_by_id, claim_ready, take_over_lapsed
from schema.statements.control import end_entries
from schema.statements.read import find_job, list_inputs
from schema.statements.redrive import count_redrivable, find_inputs_of_job
from schema.statements.turns import Turn
from tests.contract.test_statements import explain, fill, scans
from tests.databases import Databases
from tests.platform import KIND

SMALL = UUID(int=1)
# One job of 300,000 inputs, and twenty of three: Postgres takes each for one of 15,000.
_SKEW = """
    WITH j AS (
        INSERT INTO job (id, key, owner_id, kind, status, max_attempts, request_date, total,
                         correlation_id)
        SELECT lpad(to_hex(n), 32, '0')::uuid, 'J20260101_' || lpad(n::text, 6, '0'), $1, $2,
               'RUNNING', 3, current_date, CASE n WHEN 21 THEN 300000 ELSE 3 END, 'skewed'
        FROM generate_series(1, 21) AS n RETURNING id, total),
    i AS (
        INSERT INTO input (job_id, ordinal, status, body, entry_id)
        SELECT j.id, n, 'PENDING', '1', n FROM j, generate_series(0, j.total - 1) AS n)
    INSERT INTO outbox (type, job_id, owner_id, kind, first_ordinal, last_ordinal, unfinished,
                        correlation_id)
    SELECT 'inputs', j.id, $1, $2, n, least(n + 100, j.total) - 1, least(100, j.total - n), 'skewed'
    FROM j, generate_series(0, j.total - 1, 100) AS n
"""


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """One database for all: they ask for plans, and change nothing."""
    with databases.lent() as url:
        asyncio.run(fill(url, _SKEW))
        yield url


@pytest.mark.parametrize(
    "statement",
    [
        find_job("J20260101_000001", owner_id=None, most_inputs=1_000, most_bytes=1_000_000),
        list_inputs(SMALL, after=-1, until=10, states=None, most=10),
        claim_ready("w", 30, kinds=[KIND], most=10),
        claim_ready("w", 30, kinds=[KIND], most=10, turn=Turn(KIND)),
        claim_by_id("w", 30, [1, 2, 3]),
        take_over_lapsed(30, most=10),
        end_entries(SMALL, most=100, most_inputs=1_000),
        find_inputs_of_job(SMALL, statuses=["DLQ"], after=-1, until=10, most=10),
        count_redrivable(SMALL, statuses=["DLQ"], ordinals=None),
    ],
    ids=[
        "find_job", "list_inputs", "claim_ready", "claim_ready in turn", "claim_by_id", "take_over",
        "end_entries", "find_inputs_of_job", "count_redrivable",
    ],
)  # fmt: skip
async def test_a_statement_about_a_small_job_reads_no_other_inputs(
    database: Database, statement: TextClause | Bound
) -> None:
    used = scans(await explain(database, statement), "input")
    assert used <= {"input_pkey"}
