"""What somebody's lock on a row of one job may not do to the work of the others."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from consumer.lease import Leases
from infra.database import Database
from infra.queue.protocol import Claim, ClaimedInput, Unwanted
from infra.settle import Settlement, settle
from schema.errors import Unavailable
from schema.outcome import Failed, Outcome, Succeeded
from tests.deliveries import Delivery
from tests.platform import Gated, Platform, Recorder, eventually, settings_for
from tests.steps import claim_all, lapse, open_unit, until_waiting_for_a_lock

PUT_ASIDE = "settle.put_aside"
ROWS = {
    "job": "SELECT FROM job WHERE id = :id FOR UPDATE",
    "entry": "SELECT FROM outbox WHERE job_id = :id FOR UPDATE",
    "input": "SELECT FROM input WHERE job_id = :id FOR UPDATE",
}


@asynccontextmanager
async def held(database: Database, *jobs: UUID, row: str = "job") -> AsyncIterator[None]:
    """An operator looks at rows of jobs, and leaves the transaction open."""
    async with open_unit(database) as connection:
        await connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        for job_id in jobs:
            await connection.execute(text(ROWS[row]), {"id": job_id})
        yield


def leasing(delivery: Delivery, seconds: float) -> Delivery:
    """Give the same delivery, with leases of so many seconds."""
    settings = delivery.settings.model_copy(update={"lease_seconds": seconds})
    return replace(delivery, settings=settings)


@pytest.fixture
async def stranger(database: Database) -> Platform:
    """Another owner on the same platform."""
    platform = Platform(database)
    await platform.prepare()
    return platform


async def charged(platform: Platform) -> int:
    """Give how many inputs were charged with more than the one attempt that each deserves."""
    (row,) = await platform.rows(
        "SELECT (SELECT count(*) FROM attempt) + (SELECT count(*) FROM input WHERE attempts > 1)"
        " AS n"
    )
    return int(row.n)


def ran_once(recorder: Recorder, job_id: UUID, inputs: int) -> bool:
    ran = Counter(ordinal for job, ordinal in recorder.ran if job == job_id)
    return ran == Counter(range(inputs))


async def claimed(platform: Platform, job_id: UUID) -> int:
    """Give how many entries of a job were claimed and are not settled."""
    return sum(entry.epoch > 0 for entry in await platform.entries(job_id))


async def until_claimed(platform: Platform, job_id: UUID, many: int = 1) -> None:
    async def are_claimed() -> bool:
        return await claimed(platform, job_id) >= many

    await eventually(are_claimed)


def events(lines: Sequence[Mapping[str, object]]) -> Counter[object]:
    return Counter(line["event"] for line in lines)


class GatedFor(Recorder):
    """A runner of which the inputs of one job wait at a gate."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(self._wait)
        self.job_id = job_id
        self.gate = asyncio.Event()

    async def _wait(self, claim: Claim, _input: ClaimedInput) -> Outcome:
        if claim.job_id == self.job_id:
            await self.gate.wait()
        return Succeeded()


@pytest.mark.parametrize("row", sorted(ROWS))
async def test_a_row_in_other_hands_delays_its_own_job_alone(
    delivery: Delivery, platform: Platform, stranger: Platform, database: Database, row: str
) -> None:
    stuck = await platform.submit(6, chunk_size=1)
    recorder = GatedFor(stuck)
    with capture_logs() as lines:
        async with (
            delivery.dispatching(),
            leasing(delivery, 20).consuming(recorder, concurrency=8),
        ):
            await until_claimed(platform, stuck, 6)
            async with held(database, stuck, row=row):
                recorder.gate.set()
                await eventually(lambda: events(lines)[PUT_ASIDE] == 1)
                for job_id in [await platform.submit(30), await stranger.submit(30)]:
                    delivery.listener.wake()
                    await platform.until(job_id, "COMPLETED")
                    assert ran_once(recorder, job_id, 30)
                assert (await platform.job(stuck)).status == "RUNNING"
            assert (await platform.until(stuck, "COMPLETED")).succeeded == 6
            assert ran_once(recorder, stuck, 6)
    assert await charged(platform) == 0
    told = events(lines)
    assert (told[PUT_ASIDE], told["settle.caught_up"], told["settle.away"]) == (1, 1, 0)
    await platform.check_consistency()


async def test_nothing_further_is_claimed_of_a_job_in_other_hands(
    delivery: Delivery, platform: Platform, stranger: Platform, database: Database
) -> None:
    """Else what waits for its commit would grow for as long as the row is held."""
    stuck = await platform.submit(100, chunk_size=1)
    recorder = GatedFor(stuck)
    with capture_logs() as lines:
        async with (
            delivery.dispatching(),
            leasing(delivery, 20).consuming(recorder, concurrency=4, settle_batch=4),
        ):
            await until_claimed(platform, stuck, 4)
            async with held(database, stuck):
                recorder.gate.set()
                await eventually(lambda: events(lines)[PUT_ASIDE] == 1)
                most = await claimed(platform, stuck) + delivery.settings.receive_entries
                outside = await stranger.submit(100, chunk_size=1)
                delivery.listener.wake()
                await platform.until(outside, "COMPLETED")
                assert await claimed(platform, stuck) <= most < 100
            assert (await platform.until(stuck, "COMPLETED")).succeeded == 100
    assert ran_once(recorder, stuck, 100)
    assert await charged(platform) == 0


async def test_many_jobs_in_other_hands_cost_the_others_little_more_than_one(
    delivery: Delivery, platform: Platform, stranger: Platform, database: Database
) -> None:
    """In turn they would cost a second each, and the leases of the others."""
    stuck = [await platform.submit(1) for _ in range(24)]
    outside = await stranger.submit(1)
    gated = Gated()
    with capture_logs() as lines:
        async with (
            delivery.dispatching(),
            leasing(delivery, 60).consuming(gated, concurrency=32, receive_entries=20),
        ):
            for job_id in [*stuck, outside]:
                await until_claimed(platform, job_id)
            async with held(database, *stuck):
                gated.gate.set()
                async with asyncio.timeout(15):
                    await platform.until(outside, "COMPLETED")
                await eventually(lambda: events(lines)[PUT_ASIDE] == 24)
            for job_id in stuck:
                await platform.until(job_id, "COMPLETED")
    assert Counter(gated.ran) == {(job_id, 0): 1 for job_id in [*stuck, outside]}
    assert await charged(platform) == 0


async def test_a_job_that_fails_or_makes_files_waits_apart_as_well(
    delivery: Delivery, platform: Platform, stranger: Platform, database: Database
) -> None:
    """What takes several statements has the same patience in all of them."""
    stuck, outside = await platform.submit(1), await stranger.submit(1)
    gate = asyncio.Event()
    ran: Counter[UUID] = Counter()

    async def work(claim: Claim, _input: ClaimedInput) -> Outcome:
        await gate.wait()
        ran[claim.job_id] += 1
        return Failed("Boom", "x") if ran[claim.job_id] == 1 else Succeeded()

    async with delivery.dispatching(), leasing(delivery, 20).consuming(Recorder(work)):
        for job_id in (stuck, outside):
            await until_claimed(platform, job_id)
        async with held(database, stuck):
            gate.set()
            await platform.until(outside, "COMPLETED")
        await platform.until(stuck, "COMPLETED")
    assert ran == {stuck: 2, outside: 2}
    rows = await platform.rows("SELECT error_class FROM attempt")
    assert [row.error_class for row in rows] == ["Boom", "Boom"]
    await platform.check_consistency()


async def test_a_drain_waits_for_a_row_that_is_let_go_in_time(
    delivery: Delivery, platform: Platform, database: Database
) -> None:
    """What ran is settled, what waited for a slot is given back, and nobody is charged."""
    stuck = await platform.submit(6, chunk_size=1)
    gated = Gated()
    await delivery.deliver()
    with capture_logs() as lines:
        async with leasing(delivery, 20).consuming(
            gated, concurrency=2, prefetch_inputs=6, drain_seconds=30
        ) as stop:
            await until_claimed(platform, stuck, 6)
            async with held(database, stuck):
                stop.set()
                gated.gate.set()
                await eventually(lambda: events(lines)[PUT_ASIDE] == 1)
                await until_waiting_for_a_lock(platform)
    told = events(lines)
    assert (told["entry.not_released"], told["settle.given_up"], told["lease.lost"]) == (0, 0, 0)
    assert {entry.state for entry in await platform.entries(stuck)} == {"PENDING"}
    recorder = Recorder()
    async with delivery.dispatching(), delivery.consuming(recorder, worker="next"):
        delivery.listener.wake()
        assert (await platform.until(stuck, "COMPLETED")).succeeded == 6
    assert Counter(gated.ran + recorder.ran) == {(stuck, ordinal): 1 for ordinal in range(6)}
    assert await charged(platform) == 0
    await platform.check_consistency()


async def test_a_drain_ends_in_time_although_a_row_is_held_for_longer(
    delivery: Delivery, platform: Platform, database: Database
) -> None:
    """What was tried once more in vain is left to its lease: the platform's one way of repair."""
    stuck = await platform.submit(6, chunk_size=1)
    await platform.rows("UPDATE job SET status = 'RUNNING', started_at = now() RETURNING id")
    gated = Gated()
    await delivery.deliver()
    with capture_logs() as lines:
        async with held(database, stuck):
            async with (
                asyncio.timeout(20),
                delivery.consuming(
                    gated, concurrency=2, prefetch_inputs=6, drain_seconds=0.5
                ) as stop,
            ):
                await until_claimed(platform, stuck, 6)
                gated.gate.set()
                stop.set()
    told = events(lines)
    assert (told[PUT_ASIDE], told["settle.given_up"]) == (1, 1)
    assert told["entry.not_released"], "what waited, and what had run in vain"
    await lapse(platform, stuck)
    async with delivery.dispatching(), delivery.consuming(Recorder(), worker="next"):
        delivery.listener.wake()
        assert (await platform.until(stuck, "COMPLETED")).succeeded == 6
    await platform.check_consistency()


@pytest.mark.parametrize("pooler", ["none", "transaction"])
async def test_the_patience_of_a_settling_is_its_own(
    platform: Platform, database: Database, database_url: str, pooler: str
) -> None:
    """No later statement of the session has it, and none before had to set it."""
    job_id = await platform.submit(1)
    (claim,) = await claim_all(database)
    settings = settings_for(database_url, database_pool_size=1, database_pooler=pooler)
    async with Database.from_settings(settings, name="one") as one:

        async def settle_patiently(outcome: Outcome) -> bool:
            lines = [Settlement(claim, claim.inputs[0], outcome, 1)]
            (settled,) = await settle(
                one, "worker", lines, backoffs={}, jitter=lambda: 0.5, lock_seconds=0.05
            )
            return settled.accepted

        for row in ROWS:
            for outcome in (Succeeded(), Failed("Boom", "x")):
                async with held(database, job_id, row=row):
                    with pytest.raises(Unavailable, match="lock timeout"):
                        await settle_patiently(outcome)
                (shown,) = await one.fetch(text("SHOW lock_timeout"))
                assert shown.lock_timeout == "0"
        assert await settle_patiently(Succeeded())
    assert (await platform.job(job_id)).status == "COMPLETED"


async def test_an_entry_in_other_hands_keeps_no_other_from_being_claimed(
    delivery: Delivery, platform: Platform, database: Database
) -> None:
    stuck, free = await platform.submit(1), await platform.submit(1)
    await delivery.deliver()
    async with held(database, stuck, row="entry"):
        claims = await delivery.queue("w").claim(10, asyncio.Event())
    assert [claim.job_id for claim in claims] == [free]
    async with delivery.dispatching(), delivery.consuming(Recorder()):
        delivery.listener.wake()
        await platform.until(stuck, "COMPLETED")


async def test_nothing_is_claimed_of_a_shunned_job_and_nothing_of_it_is_lost(
    delivery: Delivery, platform: Platform
) -> None:
    shunned, free = await platform.submit(2, chunk_size=1), await platform.submit(2, chunk_size=1)
    await delivery.deliver()
    queue, unwanted = delivery.queue("w"), Unwanted(jobs={shunned: True}.keys())
    claims = [claim for _ in range(3) for claim in await queue.claim(10, asyncio.Event(), unwanted)]
    assert [claim.job_id for claim in claims] == [free] * 2
    assert {entry.epoch for entry in await platform.entries(shunned)} == {0}
    async with delivery.dispatching(), delivery.consuming(Recorder()):
        delivery.listener.wake()
        await platform.until(shunned, "COMPLETED")


async def test_a_lease_that_could_not_be_extended_is_asked_for_again_soon(
    delivery: Delivery, platform: Platform, database: Database
) -> None:
    """A commit has its row at the moment. Until it is extended, it ends when it did."""
    job_id = await platform.submit(1)
    (claim,) = await claim_all(database, lease_seconds=30)
    now = [0.0]
    leases = Leases(database, delivery.queue("w"), lease_seconds=30, clock=lambda: now[0])
    with leases.hold(claim) as lease:
        ends_at = lease.expires_at
        now[0] = 10.0
        async with asyncio.TaskGroup() as group:
            async with held(database, job_id, row="entry"):
                await leases.extend_once()
                assert (lease.expires_at, lease.lost) == (ends_at, False)
                keepalive = group.create_task(leases.run())
            async with asyncio.timeout(9):  # a third of the lease is 10 seconds
                await eventually(lambda: lease.expires_at == 40.0)
            keepalive.cancel()
