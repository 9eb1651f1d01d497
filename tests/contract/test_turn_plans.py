"""What a claim reads does not grow with what an owner has submitted, and no plan is kept for it."""

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import TextClause

from infra.database import Database
from schema.statements.claim import claim_ready
from schema.statements.relay import lock_ready
from tests.fairness import owners
from tests.platform import KIND

STATEMENTS = [claim_ready("w", 30, kinds=[KIND], most=10), lock_ready("t", 30, kind=KIND, most=10)]


async def rows_read(database: Database, statement: TextClause, table: str) -> float:
    """Run the statement and give how many rows its scans of the table read."""
    compiled = statement.compile(dialect=database._engine.dialect)

    async def unit(connection: AsyncConnection) -> Any:
        raw: Any = await connection.get_raw_connection()
        values = [compiled.params[name] for name in getattr(compiled, "positiontup", ())]
        query = f"EXPLAIN (ANALYZE, FORMAT JSON) {compiled}"
        return (await raw.driver_connection.fetch(query, *values))[0][0]

    def read(node: dict[str, Any]) -> float:
        own = 0.0
        if node.get("Relation Name") == table and node["Node Type"] != "ModifyTable":
            passed = node.get("Rows Removed by Filter", 0)
            own = (node["Actual Rows"] + passed) * node["Actual Loops"]
        return own + sum(read(child) for child in node.get("Plans", ()))

    return read((await database.run(unit))[0]["Plan"])


@pytest.mark.parametrize("statement", STATEMENTS, ids=["claim_ready", "lock_ready"])
async def test_what_is_read_depends_on_what_is_taken_and_not_on_what_is_there(
    database: Database, statement: TextClause
) -> None:
    large, *others = await owners(database, 30)
    await large.submit(20_000, chunk_size=1)
    later = (await large.rows("SELECT now() + interval '1 hour' AS at"))[0].at
    await large.submit(5_000, chunk_size=1, priority=9, scheduled_for=later)
    for owner in others:
        await owner.submit(20, chunk_size=1)
    await database.fetch(text("ANALYZE"))
    assert await rows_read(database, statement, "outbox") <= 10 * 6


@pytest.mark.parametrize("statement", STATEMENTS, ids=["claim_ready", "lock_ready"])
async def test_no_plan_is_kept_from_when_the_table_was_empty(
    database: Database, statement: TextClause
) -> None:
    await database.fetch(text("ANALYZE"))

    async def unit(connection: AsyncConnection) -> Any:
        for _ in range(10):
            await connection.execute(statement)
        kept = text(
            "SELECT generic_plans, custom_plans FROM pg_prepared_statements"
            " WHERE statement LIKE '%picked%' AND custom_plans > 0"
        )
        return (await connection.execute(kept)).all()

    ((generic, custom),) = await database.run(unit)
    assert (generic, custom) == (0, 10)
