"""What a claim reads does not grow with what an owner has submitted, and no plan is kept for it."""

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import TextClause

from infra.database import Database, rows_of
from schema.ids import uuid7
from schema.statements.bound import A_MOMENT, Bound
from schema.statements.claim import (
    claim_by_id,
    claim_ready,
    extend_leases,
    next_ready,
    release_entries,
    take_over_lapsed,
)
from schema.statements.gauges import measure_backlog
from schema.statements.relay import (
    find_room,
    lock_ready,
    mark_sent,
    next_event,
    promote_due,
    requeue_overdue,
)
from schema.statements.turns import Turn
from tests.fairness import owners
from tests.plans import nodes_of, plan_of
from tests.platform import KIND, Platform

STATEMENTS = [
    claim_ready("w", 30, kinds=[KIND], most=10),
    claim_ready("w", 30, kinds=[KIND], most=10, turn=Turn(KIND)),
    lock_ready("t", 30, kind=KIND, most=10),
]


async def rows_read(database: Database, statement: TextClause | Bound, table: str) -> float:
    """Run the statement and give how many rows its scans of the table read."""
    read = 0.0
    for node in nodes_of(await plan_of(database, statement, analyze=True)):
        if node.get("Relation Name") == table and node["Node Type"] != "ModifyTable":
            passed = node.get("Rows Removed by Filter", 0)
            read += (node["Actual Rows"] + passed) * node["Actual Loops"]
    return read


@pytest.mark.parametrize(
    "statement", STATEMENTS, ids=["claim_ready", "claim_ready in turn", "lock_ready"]
)
async def test_what_is_read_depends_on_what_is_taken_and_not_on_what_is_there(
    database: Database, statement: Bound
) -> None:
    large, *others = await owners(database, 30)
    await large.submit(20_000, chunk_size=1)
    later = (await large.rows("SELECT now() + interval '1 hour' AS at"))[0].at
    await large.submit(5_000, chunk_size=1, priority=9, scheduled_for=later)
    for owner in others:
        await owner.submit(20, chunk_size=1)
    await database.fetch(text("ANALYZE"))
    assert await rows_read(database, statement, "outbox") <= 10 * 6


@pytest.mark.parametrize("is_analyzed", [False, True], ids=["flooded just now", "analyzed"])
async def test_measuring_reads_no_more_than_its_limit_of_any_state(
    database: Database, platform: Platform, *, is_analyzed: bool
) -> None:
    await platform.submit(12_000, chunk_size=1)
    await platform.rows(
        "UPDATE outbox SET state = CASE id % 6 WHEN 0 THEN 'HELD' WHEN 1 THEN 'PARKED'"
        " WHEN 2 THEN 'SENT' WHEN 3 THEN 'CLAIMED' ELSE 'PENDING' END,"
        " parked_reason = CASE id % 6 WHEN 1 THEN 'x' END,"
        " sent_at = CASE id % 6 WHEN 2 THEN now() END,"
        " locked_by = CASE id % 6 WHEN 3 THEN 'w' END,"
        " locked_until = CASE id % 6 WHEN 3 THEN now() END, deferred = id % 6 = 4,"
        " available_at = now() + CASE id % 6 WHEN 4 THEN 1 ELSE 0 END * interval '1 hour'"
        " RETURNING id"
    )
    if is_analyzed:
        await database.fetch(text("ANALYZE"))
    most, parts = 100, ("ready", "sent", "deferred", "claimed", "first made")
    read = await rows_read(database, measure_backlog(most=most), "outbox")
    assert len(parts) * most <= read <= len(parts) * most + 10


async def test_no_plan_is_kept_from_when_the_outbox_was_empty(database: Database) -> None:
    """Those that run often keep theirs for a moment, the others not at all."""
    often = [
        *STATEMENTS,
        claim_by_id("w", 30, [1]),
        extend_leases([1], [1], [uuid7()], 30),
        release_entries([1], [1], 0),
        next_ready(),
        promote_due(),
        find_room(window=10),
        mark_sent("t", [1]),
        next_event(),
    ]
    assert {statement.plan_seconds for statement in often} == {A_MOMENT}
    now_and_then = [take_over_lapsed(30, most=10), requeue_overdue(900, most=10)]

    async def unit(connection: AsyncConnection) -> Any:
        for statement in now_and_then:
            for _ in range(10):
                await rows_of(connection, statement)
        kept = "SELECT generic_plans FROM pg_prepared_statements WHERE custom_plans >= 10"
        return (await connection.execute(text(kept))).scalars().all()

    assert await database.run(unit) == [0] * len(now_and_then)


async def test_messages_find_their_entries_whatever_statistics_say_of_jobs(
    database: Database, platform: Platform
) -> None:
    """They may be from a lull, in which each job had one entry."""
    for _ in range(5):
        await platform.submit(1)
    await platform.rows("ANALYZE")
    job_id = await platform.submit(5_000, chunk_size=1)
    ids = [entry.id for entry in await platform.entries(job_id)][:3]
    assert await rows_read(database, claim_by_id("w", 30, ids), "outbox") <= 10
