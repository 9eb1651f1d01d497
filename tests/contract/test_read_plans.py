"""Lists stay on their indexes, whatever is asked and however far they are read."""

import asyncio
import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from infra.database import Database
from schema.statements.read import JobFilter, find_job, list_inputs, list_jobs
from tests.contract.test_statements import explain
from tests.databases import Databases
from tests.platform import Platform, settings_for

# The jobs below were requested within the last 30,000 seconds.
HALF_WAY = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=15_000)
EVERYTHING = JobFilter(
    owner_id=None,
    statuses=None,
    kinds=None,
    correlation_id=None,
    requested_from=dt.datetime(1, 1, 1, tzinfo=dt.UTC),
    requested_to=dt.datetime(9999, 12, 31, tzinfo=dt.UTC),
    before_time=dt.datetime(9999, 12, 31, tzinfo=dt.UTC),
    before_id=UUID(int=2**128 - 1),
)


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """One database for all: they ask for plans, and change nothing."""
    with databases.lent() as url:
        asyncio.run(_grow(url))
        yield url


async def _grow(url: str) -> None:
    """Make 30,000 jobs of a hundred owners, and a job of 20,000 inputs."""
    async with Database.from_settings(settings_for(url), name="growing") as database:
        platform = Platform(database)
        await platform.prepare()
        await platform.rows(
            "INSERT INTO owner (id, name) SELECT gen_random_uuid(), 'other-' || n"
            " FROM generate_series(1, 99) AS n RETURNING 1"
        )
        await platform.rows(
            """
            INSERT INTO job (id, key, owner_id, kind, status, max_attempts, request_date, total,
                             requested_at, finished_at, correlation_id, succeeded)
            SELECT gen_random_uuid(), 'J20260101_' || lpad(n::text, 6, '0'),
                   coalesce((SELECT id FROM owner WHERE name = 'other-' || n % 100), :owner),
                   'export',
                   CASE WHEN n % 500 = 0 THEN 'RUNNING' ELSE 'COMPLETED' END, 3, current_date, 1,
                   now() - n * interval '1 second', CASE WHEN n % 500 <> 0 THEN now() END, 'c' || n,
                   CASE WHEN n % 500 <> 0 THEN 1 ELSE 0 END
            FROM generate_series(1, 30000) AS n RETURNING 1
            """,
            owner=platform.owner_id,
        )
        await platform.submit(20_000, chunk_size=100)
        for table in ("job", "input", "outbox"):
            await database.fetch(text(f"ANALYZE {table}"))


@pytest.fixture
async def owner_id(database: Database) -> UUID:
    """Give the owner of the large job."""
    (job,) = await database.fetch(text("SELECT owner_id FROM job WHERE total = 20000"))
    owner_id: UUID = job.owner_id
    return owner_id


@pytest.mark.parametrize(
    ("changes", "index"),
    [
        ({}, "job_recent"),
        ({"owner": True}, "job_owner_recent"),
        ({"owner": True, "statuses": ("RUNNING",)}, "job_owner_status"),
        ({"correlation_id": "c77"}, "job_correlation"),
        ({"owner": True, "before_time": HALF_WAY}, "job_owner_recent"),
    ],
)
async def test_a_list_of_jobs_reads_its_page_from_an_index(
    database: Database, owner_id: UUID, changes: dict[str, Any], index: str
) -> None:
    values = dict(changes)
    if values.pop("owner", False):
        values["owner_id"] = owner_id
    statement = list_jobs(replace(EVERYTHING, **values), most=101, window=101)
    nodes = await explain(database, statement)
    used = [str(node["Index Name"]) for node in nodes if "Index Name" in node]
    assert any(name.startswith(index) for name in used)
    assert not [n for n in nodes if n["Node Type"] == "Seq Scan" and n["Relation Name"] == "job"]


async def test_a_page_of_inputs_is_a_range_of_the_key(database: Database, owner_id: UUID) -> None:
    (job,) = await database.fetch(text("SELECT id, key FROM job WHERE total = 20000"))
    for states in (None, ["DLQ"]):
        statement = list_inputs(job.id, after=9_999, until=10_099, states=states, most=101)
        nodes = await explain(database, statement)
        assert "input_pkey" in {node.get("Index Name") for node in nodes}
        assert not [
            n for n in nodes if n["Node Type"] == "Seq Scan" and n["Relation Name"] == "input"
        ]


async def test_a_huge_job_is_shown_without_reading_its_inputs(
    database: Database, owner_id: UUID
) -> None:
    (job,) = await database.fetch(text("SELECT key FROM job WHERE total = 20000"))
    statement = find_job(job.key, owner_id=owner_id, most_inputs=1_000, most_bytes=1 << 20)
    compiled = statement.compile(dialect=database._engine.dialect)

    async def unit(connection: Any) -> Any:
        raw = await connection.get_raw_connection()
        values = [compiled.params[name] for name in compiled.positiontup or ()]
        query = f"EXPLAIN (ANALYZE, FORMAT JSON) {compiled}"
        return (await raw.driver_connection.fetch(query, *values))[0][0]

    plan = await database.run(unit)
    read: list[tuple[str, int]] = []

    def walk(node: dict[str, Any]) -> None:
        if node.get("Relation Name") == "input":
            read.append((node["Node Type"], node["Actual Loops"]))
        for child in node.get("Plans", ()):
            walk(child)

    walk(plan[0]["Plan"])
    assert read
    assert all(loops == 0 for _, loops in read)
