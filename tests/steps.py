"""Single steps of the platform, for tests that interleave them by hand."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import TextClause

from dispatcher.sweeper import Sweeper
from infra.database import Database
from infra.queue.protocol import Claim
from infra.settle import Settled, Settlement, settle
from schema.outcome import Backoff, Outcome, Refused
from schema.statements.claim import claim_ready
from tests.platform import KIND, Platform, eventually

Control = Callable[..., TextClause]


async def claim_all(
    database: Database, *, lease_seconds: float = 30, most: int = 100
) -> list[Claim]:
    rows = await database.fetch(claim_ready("worker", lease_seconds, kinds=[KIND], most=most))
    return [Claim.from_row(row) for row in rows]


async def settle_as(database: Database, claim: Claim, *outcomes: Outcome) -> list[Settled]:
    return await settle(
        database,
        "worker",
        [
            Settlement(claim, input_, outcome, 1)
            for input_, outcome in zip(claim.inputs, outcomes, strict=False)
        ],
        backoffs={KIND: Backoff(0.0, 0.0)},
        jitter=lambda: 0.5,
    )


async def lapse(platform: Platform, job_id: UUID) -> None:
    """Let the leases of a job run out, by the database's own clock."""
    await platform.rows(
        "UPDATE outbox SET locked_until = now() - interval '1 second'"
        " WHERE job_id = :id AND state = 'CLAIMED' RETURNING id",
        id=job_id,
    )


async def control(platform: Platform, statement: Control, job_id: UUID) -> Row[Any]:
    """Pause, resume or cancel a job, as the API would."""
    key = (await platform.job(job_id)).key
    (row,) = await platform.database.fetch(statement(key, owner_id=None))
    return row


def sweeper(database: Database, *, most: int = 100) -> Sweeper:
    return Sweeper(database, most=most, wake=lambda: None, tell=lambda: None)


async def sweep(database: Database) -> None:
    """Sweep until nothing moves."""
    one = sweeper(database)
    while await one.once():
        pass


async def at_once(seed: int, *steps: Awaitable[object]) -> None:
    """Run steps side by side, begun in an order that the seed decides."""
    order = list(steps)
    random.Random(seed).shuffle(order)
    await asyncio.gather(*order)


async def kill(platform: Platform, job_id: UUID) -> None:
    """Let every unfinished input of a job die, whatever stands in the way of claiming others."""
    for claim in await claim_all(platform.database, most=10_000):
        if claim.job_id == job_id:
            await settle_as(
                platform.database, claim, *[Refused("Bad", "no good")] * len(claim.inputs)
            )


@asynccontextmanager
async def open_unit(database: Database) -> AsyncIterator[AsyncConnection]:
    """A transaction that stays open inside the block, and is committed when the block ends."""
    async with database._engine.connect() as connection:
        async with connection.begin():
            yield connection


async def until_waiting_for_a_lock(platform: Platform, *, many: int = 1) -> None:
    """Return when so many sessions of this database wait for a lock."""

    async def waits() -> bool:
        rows = await platform.rows(
            "SELECT count(*) AS n FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(rows[0].n >= many)

    await eventually(waits, timeout_seconds=10)
