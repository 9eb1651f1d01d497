"""Claims whose answer was lost are given back by whoever made them, and charged to nobody."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Row
from sqlalchemy.sql.elements import TextClause
from structlog.testing import capture_logs

from consumer.lease import Leases
from consumer.strays import Strays
from infra.database import Database
from schema.errors import Unavailable
from schema.statements.bound import Bound
from tests.deliveries import Delivery
from tests.integration.test_held_rows import events, leasing
from tests.platform import Platform, Recorder, eventually, settings_for
from tests.steps import claim_all


class Losing(Database):
    """Loses the answer to the first claim that took anything."""

    lost = 0

    async def fetch(self, statement: TextClause | Bound) -> Sequence[Row[Any]]:
        rows = await super().fetch(statement)
        if not self.lost and rows and hasattr(rows[0], "generations"):
            self.lost += 1
            raise Unavailable("the answer was lost")
        return rows


async def test_a_claim_whose_answer_was_lost_is_given_back_before_its_lease_ends(
    delivery: Delivery, platform: Platform, database_url: str
) -> None:
    """Each of its inputs was charged an attempt, and died of it, though nothing had run."""
    runner = Recorder()
    job_id = await platform.submit(5, chunk_size=5, max_attempts=1)
    await delivery.deliver()
    async with Losing.from_settings(settings_for(database_url), name="losing") as losing:
        cut_off = leasing(replace(delivery, database=losing), 4)
        with capture_logs() as lines:
            async with delivery.dispatching(), cut_off.consuming(runner, receivers=2):
                assert (await platform.until(job_id, "COMPLETED")).succeeded == 5
        assert losing.lost == 1
    assert events(lines)["claims.recovered"] == 1
    assert sorted(ordinal for _, ordinal in runner.ran) == [0, 1, 2, 3, 4]
    assert not await platform.rows("SELECT FROM attempt")


async def test_a_drain_gives_back_a_claim_whose_answer_was_lost(
    delivery: Delivery, platform: Platform, database_url: str
) -> None:
    job_id = await platform.submit(5, chunk_size=5, max_attempts=1)
    await delivery.deliver()
    async with Losing.from_settings(settings_for(database_url), name="losing") as losing:
        cut_off = leasing(replace(delivery, database=losing), 600)
        async with cut_off.consuming(Recorder()) as stop:
            await eventually(lambda: losing.lost == 1)
            stop.set()
    (entry,) = await platform.entries(job_id)
    assert (entry.state, entry.epoch) == ("PENDING", 1)


async def test_what_is_in_hand_or_was_left_to_its_lease_is_not_given_back(
    delivery: Delivery, platform: Platform, database: Database
) -> None:
    """What ran and could not be recorded would run again, and no attempt would count it."""
    await platform.submit(3, chunk_size=1)
    claims = await claim_all(database)
    leases = Leases(database, delivery.queue("w"), lease_seconds=30)
    strays = Strays(
        database, leases, worker="worker", lease_seconds=30, lock_seconds=1, wake=lambda: None
    )
    with leases.hold(claims[0]):
        with leases.hold(claims[1]):
            pass  # it was lost
        strays.suspect()
        await strays.last()
    states = {
        entry.id: entry.state
        for (job_id,) in await platform.rows("SELECT id FROM job")
        for entry in await platform.entries(job_id)
    }
    assert states == {
        claims[0].entry_id: "CLAIMED",
        claims[1].entry_id: "CLAIMED",
        claims[2].entry_id: "PENDING",
    }


async def test_a_lease_counts_from_when_it_was_asked_for(
    delivery: Delivery, platform: Platform, database: Database
) -> None:
    """One that was long on its way into our hands ended in Postgres before it did here."""
    await platform.submit(1)
    (claim,) = await claim_all(database, lease_seconds=30)
    late = replace(claim, asked_at=claim.asked_at - 25)
    now = asyncio.get_running_loop().time
    leases = Leases(database, delivery.queue("w"), lease_seconds=30, clock=now)
    async with asyncio.TaskGroup() as group:
        keepalive = group.create_task(leases.run())
        with leases.hold(late) as lease:
            assert lease.expires_at - now() < 5.1
            async with asyncio.timeout(4):  # the usual time is ten seconds away
                await eventually(lambda: lease.expires_at - now() > 20)
        keepalive.cancel()
