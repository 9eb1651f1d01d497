"""Every statement is prepared against a real database, and the hot ones keep their plans."""

import importlib
import inspect
import pkgutil
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.sql.elements import TextClause

import schema.statements
from infra.database import Database
from schema.ids import uuid7
from schema.statements.batch import Forms
from schema.statements.bound import Bound
from schema.statements.gauges import count_letters
from tests.plans import nodes_of, plan_of
from tests.platform import KIND, Platform

NOBODY = UUID(int=0)


def all_texts() -> dict[str, TextClause]:
    found: dict[str, TextClause] = {}
    for module in pkgutil.iter_modules(schema.statements.__path__):
        loaded = importlib.import_module(f"schema.statements.{module.name}")
        for name, value in inspect.getmembers(loaded, lambda v: isinstance(v, TextClause)):
            found[f"{module.name}.{name}"] = value
        for name, forms in inspect.getmembers(loaded, lambda v: isinstance(v, Forms)):
            for form, value in forms._asdict().items():
                found[f"{module.name}.{name}.{form}"] = value
    return found


async def test_every_statement_can_be_prepared(
    database: Database, subtests: pytest.Subtests
) -> None:
    texts = all_texts()
    assert len(texts) > 20
    for name, statement in texts.items():
        with subtests.test(name):

            async def unit(connection: Any, statement: TextClause = statement) -> None:
                raw = await connection.get_raw_connection()
                await raw.driver_connection.prepare(
                    str(statement.compile(dialect=connection.dialect))
                )

            await database.run(unit)


async def explain(database: Database, statement: TextClause | Bound) -> list[dict[str, Any]]:
    """Give all nodes of the plan that Postgres chooses with statistics in place."""
    return [*nodes_of(await plan_of(database, statement))]


async def fill(url: str, statement: str) -> None:
    """Fill a database by a statement that takes an owner and a kind; gather its statistics."""
    connection = await asyncpg.connect(url)
    try:
        owner_id = uuid7()
        await connection.execute("INSERT INTO owner (id, name) VALUES ($1, 'one')", owner_id)
        await connection.execute(statement, owner_id, KIND)
        await connection.execute("ANALYZE")
    finally:
        await connection.close()


def scans(nodes: list[dict[str, Any]], table: str) -> set[str]:
    return {
        node.get("Index Name", node["Node Type"])
        for node in nodes
        if (node.get("Relation Name") == table and node["Node Type"] != "ModifyTable")
        or (node["Node Type"] == "Bitmap Index Scan" and node["Index Name"].startswith(table))
    }


async def test_causes_of_dead_letters_are_counted_along_their_index(
    platform: Platform, database: Database
) -> None:
    await platform.rows(
        "INSERT INTO dead_letter (job_id, ordinal, owner_id, kind, attempts, worker, error_class,"
        " error_message, fingerprint, correlation_id)"
        " SELECT gen_random_uuid(), n, :owner, 'export', 1, 'w', 'Bad', 'no',"
        " 'cause ' || n % 7, 'c' FROM generate_series(1, 20000) AS n RETURNING ordinal",
        owner=platform.owner_id,
    )
    await database.fetch(text("ANALYZE dead_letter"))
    statement = count_letters(most=100_000, most_causes=1_000)
    (row,) = await database.fetch(statement)
    assert (row.letters, row.causes) == (20_000, 7)
    nodes = await explain(database, statement)
    assert "dead_letter_fingerprint" in {node.get("Index Name") for node in nodes}


async def test_an_update_of_an_input_is_heap_only(platform: Platform, database: Database) -> None:
    """No index stands on anything that settling changes."""
    job_id = await platform.submit(200, chunk_size=100)
    await platform.rows(
        "UPDATE input SET status = 'SUCCEEDED', entry_id = NULL, attempts = 1, settled_at = now()"
        " WHERE job_id = :id RETURNING ordinal",
        id=job_id,
    )
    await platform.rows("SELECT pg_stat_force_next_flush()")
    rows = await platform.rows(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'input'"
    )
    assert rows[0].n_tup_upd == 200
    assert rows[0].n_tup_hot_upd == 200
