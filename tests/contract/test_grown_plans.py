"""The hot statements keep their plans in tables that have grown."""

import asyncio
from collections.abc import Iterator
from uuid import UUID

import pytest
from sqlalchemy.sql.elements import TextClause

from infra.database import Database
from schema.statements.bound import Bound
from schema.statements.claim import claim_by_id, claim_ready, next_ready, take_over_lapsed
from schema.statements.control import (
    clear_sweeping,
    end_entries,
    expire_jobs,
    find_sweeping_jobs,
    move_entries,
)
from schema.statements.gauges import measure_backlog
from schema.statements.relay import (
    find_room,
    lock_due_events,
    lock_ready,
    next_event,
    promote_due,
    requeue_overdue,
)
from schema.statements.retention import mark_prunable_jobs, prune_marked_jobs
from schema.statements.turns import Turn
from tests.contract.test_statements import explain, fill, scans
from tests.databases import Databases
from tests.platform import KIND

NOBODY = UUID(int=0)
# 200,000 finished inputs; 20,000 entries, most of them sent and few due.
_GROW = """
    WITH j AS (
        INSERT INTO job (id, key, owner_id, kind, status, max_attempts, request_date, total,
                         correlation_id)
        SELECT gen_random_uuid(), 'J20260101_' || lpad(n::text, 6, '0'), $1, $2,
               'RUNNING', 3, current_date, 1000, 'grown'
        FROM generate_series(1, 200) AS n RETURNING id),
    i AS (
        INSERT INTO input (job_id, ordinal, status, body)
        SELECT j.id, n, 'SUCCEEDED', '1' FROM j, generate_series(0, 999) AS n)
    INSERT INTO outbox (type, job_id, owner_id, kind, first_ordinal, last_ordinal, unfinished,
                        state, available_at, deferred, sent_at, correlation_id)
    SELECT 'inputs', j.id, $1, $2, n, n, 1,
           CASE WHEN n < 99 THEN 'SENT' ELSE 'PENDING' END,
           now() + (n - 99) * interval '1 minute', n > 99,
           CASE WHEN n < 99 THEN now() END, 'grown'
    FROM j, generate_series(0, 199) AS n
"""


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """One database for all: they ask for plans, and change nothing."""
    with databases.lent() as url:
        asyncio.run(fill(url, _GROW))
        yield url


@pytest.mark.parametrize(
    ("statement", "table", "indexes"),
    [
        (claim_ready("w", 30, kinds=[KIND], most=10), "outbox", {"outbox_ready"}),
        (
            claim_ready("w", 30, kinds=[KIND], most=10, turn=Turn(KIND)),
            "outbox",
            {"outbox_ready"},
        ),
        (lock_ready("t", 30, kind=KIND, most=100), "outbox", {"outbox_ready"}),
        (next_ready(), "outbox", {"outbox_ready"}),
        (promote_due(), "outbox", {"outbox_deferred"}),
        (find_room(window=200), "outbox", {"outbox_sent"}),
        (take_over_lapsed(30, most=10), "outbox", {"outbox_lease"}),
        (requeue_overdue(900, most=100), "outbox", {"outbox_sent"}),
        (claim_by_id("w", 30, [1, 2, 3]), "outbox", {"outbox_pkey"}),
        (lock_due_events("t", 30, most=100), "outbox", {"outbox_event"}),
        (next_event(), "outbox", {"outbox_event"}),
        (move_entries(NOBODY, most=100), "outbox", {"outbox_job"}),
        (end_entries(NOBODY, most=100, most_inputs=1_000), "outbox", {"outbox_job"}),
        (end_entries(NOBODY, most=100, most_inputs=1_000), "input", {"input_pkey"}),
        (clear_sweeping(NOBODY, 1), "outbox", {"outbox_job"}),
        (expire_jobs(most=100), "job", {"job_expiring", "job_active"}),
        (find_sweeping_jobs(after=NOBODY, most=10), "job", {"job_sweeping"}),
        (mark_prunable_jobs(30, most=100, events_are_sent=True), "outbox", {"outbox_job"}),
        (prune_marked_jobs(most_jobs=10, most_inputs=100), "input", {"input_pkey"}),
    ],
    ids=[
        "claim_ready", "claim_ready in turn", "lock_ready", "next_ready", "promote_due",
        "find_room", "take_over_lapsed", "requeue_overdue", "claim_by_id", "lock_events",
        "next_event", "move_entries", "end_entries", "end_inputs", "clear_sweeping",
        "expire_jobs", "find_sweeping_jobs", "mark_prunable_jobs", "prune_marked_jobs",
    ],
)  # fmt: skip
async def test_the_hot_statement_finds_its_entries_through_an_index(
    database: Database, statement: TextClause | Bound, table: str, indexes: set[str]
) -> None:
    used = scans(await explain(database, statement), table)
    assert used & indexes
    assert "Seq Scan" not in used


async def test_each_state_of_work_is_measured_through_its_index(database: Database) -> None:
    assert scans(await explain(database, measure_backlog(most=100)), "outbox") == {
        "outbox_ready",
        "outbox_sent",
        "outbox_deferred",
        "outbox_lease",
        "outbox_event",
        "outbox_pkey",
    }


async def test_inputs_of_a_claim_are_read_by_key_and_never_scanned(database: Database) -> None:
    nodes = await explain(database, claim_ready("w", 30, kinds=[KIND], most=10))
    assert "Seq Scan" not in scans(nodes, "input")
    assert "input_pkey" in {node.get("Index Name") for node in nodes}
