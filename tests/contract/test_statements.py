"""Every statement is prepared against a real database, and the hot ones keep their plans."""

import importlib
import inspect
import pkgutil
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import ClauseElement, text
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import TextClause

import schema.statements
from infra.database import Database
from schema.statements.claim import claim_by_id, claim_ready, next_ready, take_over_lapsed
from schema.statements.control import (
    clear_sweeping,
    end_entries,
    expire_jobs,
    find_sweeping_jobs,
    move_entries,
)
from schema.statements.gauges import count_letters, measure_backlog
from schema.statements.relay import (
    find_room,
    lock_due_events,
    lock_ready,
    next_event,
    promote_due,
    requeue_overdue,
)
from schema.statements.retention import mark_prunable_jobs, prune_marked_jobs
from tests.platform import KIND, Platform

NOBODY = UUID(int=0)


def all_texts() -> dict[str, TextClause]:
    found: dict[str, TextClause] = {}
    for module in pkgutil.iter_modules(schema.statements.__path__):
        loaded = importlib.import_module(f"schema.statements.{module.name}")
        for name, value in inspect.getmembers(loaded, lambda v: isinstance(v, TextClause)):
            found[f"{module.name}.{name}"] = value
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


async def explain(database: Database, statement: ClauseElement) -> list[dict[str, Any]]:
    """Give all nodes of the plan that Postgres chooses with statistics in place."""
    compiled = statement.compile(dialect=database._engine.dialect)
    assert isinstance(compiled, SQLCompiler)
    nodes: list[dict[str, Any]] = []

    async def unit(connection: Any) -> None:
        raw = await connection.get_raw_connection()
        values = [compiled.params[name] for name in compiled.positiontup or ()]
        rows = await raw.driver_connection.fetch(f"EXPLAIN (FORMAT JSON) {compiled}", *values)
        plan = rows[0][0][0]["Plan"]

        def walk(node: dict[str, Any]) -> None:
            nodes.append(node)
            for child in node.get("Plans", ()):
                walk(child)

        walk(plan)

    await database.run(unit)
    return nodes


@pytest.fixture
async def grown(platform: Platform, database: Database) -> list[UUID]:
    """Tables that have grown: 200,000 finished inputs, 20,000 entries mostly sent, few due."""
    await platform.rows(
        """
        WITH j AS (
            INSERT INTO job (id, key, owner_id, kind, status, max_attempts, request_date, total,
                             correlation_id)
            SELECT gen_random_uuid(), 'J20260101_' || lpad(n::text, 6, '0'), :owner, :kind,
                   'RUNNING', 3, current_date, 1000, 'grown'
            FROM generate_series(1, 200) AS n RETURNING id),
        i AS (
            INSERT INTO input (job_id, ordinal, status, body)
            SELECT j.id, n, 'SUCCEEDED', '1' FROM j, generate_series(0, 999) AS n)
        INSERT INTO outbox (type, job_id, owner_id, kind, first_ordinal, last_ordinal, unfinished,
                            state, available_at, deferred, sent_at, correlation_id)
        SELECT 'inputs', j.id, :owner, :kind, n, n, 1,
               CASE WHEN n < 99 THEN 'SENT' ELSE 'PENDING' END,
               now() + (n - 99) * interval '1 minute', n > 99,
               CASE WHEN n < 99 THEN now() END, 'grown'
        FROM j, generate_series(0, 199) AS n RETURNING id
        """,
        owner=platform.owner_id,
        kind=KIND,
    )
    await database.fetch(text("ANALYZE"))
    return [row.id for row in await platform.rows("SELECT id FROM job")]


def scans(nodes: list[dict[str, Any]], table: str) -> set[str]:
    return {
        node.get("Index Name", node["Node Type"])
        for node in nodes
        if (node.get("Relation Name") == table and node["Node Type"] != "ModifyTable")
        or (node["Node Type"] == "Bitmap Index Scan" and node["Index Name"].startswith(table))
    }


@pytest.mark.parametrize(
    ("statement", "table", "indexes"),
    [
        (claim_ready("w", 30, kinds=[KIND], most=10), "outbox", {"outbox_ready"}),
        (lock_ready("t", 30, kind=KIND, most=100), "outbox", {"outbox_ready"}),
        (next_ready(), "outbox", {"outbox_ready"}),
        (promote_due(), "outbox", {"outbox_deferred"}),
        (find_room(window=200), "outbox", {"outbox_sent"}),
        (take_over_lapsed(30, most=10), "outbox", {"outbox_lease"}),
        (requeue_overdue(900, most=100), "outbox", {"outbox_sent"}),
        (measure_backlog(most=100), "outbox", {"outbox_pkey"}),
        (measure_backlog(most=100), "outbox", {"outbox_event"}),
        (claim_by_id("w", 30, [1, 2, 3]), "outbox", {"outbox_pkey"}),
        (lock_due_events("t", 30, most=100), "outbox", {"outbox_event"}),
        (next_event(), "outbox", {"outbox_event"}),
        (move_entries(NOBODY, most=100), "outbox", {"outbox_job"}),
        (end_entries(NOBODY, most=100, most_inputs=1_000), "outbox", {"outbox_job"}),
        (end_entries(NOBODY, most=100, most_inputs=1_000), "input", {"input_pkey"}),
        (clear_sweeping(NOBODY, 1), "outbox", {"outbox_job"}),
        (expire_jobs(most=100), "job", {"job_expiring", "job_active"}),
        (find_sweeping_jobs(after=NOBODY, most=10), "job", {"job_sweeping"}),
        (mark_prunable_jobs(30, most=100), "outbox", {"outbox_job"}),
        (prune_marked_jobs(most_jobs=10, most_inputs=100), "input", {"input_pkey"}),
    ],
    ids=[
        "claim_ready", "lock_ready", "next_ready", "promote_due", "find_room", "take_over_lapsed",
        "requeue_overdue", "oldest_entries", "oldest_event", "claim_by_id", "lock_events",
        "next_event", "move_entries", "end_entries", "end_inputs", "clear_sweeping",
        "expire_jobs", "find_sweeping_jobs", "mark_prunable_jobs", "prune_marked_jobs",
    ],
)  # fmt: skip
async def test_the_hot_statement_finds_its_entries_through_an_index(
    grown: list[UUID], database: Database, statement: TextClause, table: str, indexes: set[str]
) -> None:
    used = scans(await explain(database, statement), table)
    assert used & indexes
    assert "Seq Scan" not in used


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


async def test_inputs_of_a_claim_are_read_by_key_and_never_scanned(
    grown: list[UUID], database: Database
) -> None:
    nodes = await explain(database, claim_ready("w", 30, kinds=[KIND], most=10))
    assert "Seq Scan" not in scans(nodes, "input")
    assert "input_pkey" in {node.get("Index Name") for node in nodes}


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
