"""The plan of a statement, as Postgres makes it for the product."""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import TextClause

from infra.database import Database
from infra.driver import Writer, driver_of, session_of
from schema.statements.bound import Bound


async def plan_of(
    database: Database, statement: TextClause | Bound, *, analyze: bool = False
) -> dict[str, Any]:
    """Give the top node of the plan; ``analyze`` runs the statement, and says what it read.

    What may keep its plan has the one for any values, the others the one for these.
    """
    sql, values = Writer(database._engine.dialect).write(statement)
    options = f"({'ANALYZE, ' if analyze else ''}FORMAT JSON)"
    keeps = isinstance(statement, Bound) and statement.plan_seconds > 0

    async def unit(connection: AsyncConnection) -> Any:
        driver = driver_of(session_of(connection))
        if not keeps:
            return await driver.fetchval(f"EXPLAIN {options} {sql}", *values)
        await driver.execute(
            f"SET LOCAL plan_cache_mode = force_generic_plan; PREPARE kept AS {sql}"
        )
        try:
            given = ", ".join(map(_literal, values))
            return await driver.fetchval(f"EXPLAIN {options} EXECUTE kept ({given})")
        finally:
            await driver.execute("DEALLOCATE kept")

    answer = await database.run(unit)
    plan: dict[str, Any] = answer[0]["Plan"]
    return plan


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give all nodes of a plan, from the top."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes_of(part)


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"'{{{','.join(map(str, value))}}}'"
    return f"'{value}'"
