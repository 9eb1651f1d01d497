"""What was claimed and does not run is given back at no cost, and a drain ends whatever waits."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Row
from sqlalchemy.sql.elements import TextClause
from structlog.testing import capture_logs

from consumer.lease import Leases
from consumer.releaser import Releaser
from infra.database import Database
from infra.queue.protocol import NOTHING, Claim, ClaimedInput, Queue, Unwanted
from schema.errors import Unavailable
from schema.outcome import Outcome, Succeeded
from schema.statements.bound import Bound
from schema.statements.claim import release_entries
from schema.statements.settle import settle_inputs
from tests.deliveries import Delivery, open_delivery
from tests.integration.faults.test_bad_rows import a_bad_row
from tests.integration.test_held_rows import GatedFor, claimed, events, held, leasing, until_claimed
from tests.platform import Deaf, Gated, Platform, Recorder, eventually, settings_for
from tests.steps import claim_all
from tests.stubs.tcp_proxy import TcpProxy

_SETTLE_TEXT = settle_inputs({}, held_ids=[], held_epochs=[]).text


class Watched:
    """A queue of which it can be told whether anybody waits there."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.claiming = queue.claiming
        self.claim_rest = queue.claim_rest
        self.extend = queue.extend
        self.acknowledge = queue.acknowledge
        self.abandon = queue.abandon
        self.ping = queue.ping
        self.waiting = 0
        self.claims = 0

    async def claim(
        self, most: int, stop: asyncio.Event, unwanted: Unwanted = NOTHING
    ) -> Sequence[Claim]:
        self.waiting += 1
        try:
            claims = await self._queue.claim(most, stop, unwanted)
        finally:
            self.waiting -= 1
        self.claims += len(claims)
        return claims


@pytest.mark.parametrize("concurrency", [2, 10])
async def test_a_drain_ends_although_several_receivers_wait_for_room(
    delivery: Delivery, platform: Platform, concurrency: int
) -> None:
    """One kept the room that it had waited for, and the other waited for that for ever."""
    gated, queue = Gated(), Watched(delivery.queue("worker"))
    await platform.submit(100, chunk_size=10)
    await delivery.deliver()
    async with (
        asyncio.timeout(30),
        delivery.consuming(
            gated,
            queue=lambda _: queue,
            receivers=2,
            concurrency=concurrency,
            prefetch_inputs=10,
            drain_seconds=20,
        ) as stop,
    ):
        await eventually(lambda: queue.claims >= 2 and not queue.waiting)
        stop.set()
        gated.gate.set()
    assert len(gated.ran) == concurrency
    await platform.check_consistency()


async def test_a_drain_ends_although_every_slot_is_held_by_what_ignores_it(
    delivery: Delivery, platform: Platform
) -> None:
    deaf = Deaf()
    await platform.submit(1)
    await delivery.deliver()
    async with (
        asyncio.timeout(30),
        delivery.consuming(
            deaf, concurrency=1, cancel_grace_seconds=0.1, drain_seconds=0.1
        ) as stop,
    ):
        await deaf.started.wait()
        stop.set()
    deaf.gate.set()


async def test_what_is_given_back_while_postgres_is_away_is_given_back_later(
    proxied: Database, proxied_url: str, database: Database, database_url: str,
    station: Delivery, platform: Platform, postgres_proxy: TcpProxy,
) -> None:  # fmt: skip
    """It was left to its lease, and inputs that had never run were charged for it, and died."""
    gated, other = Gated(), Recorder()
    job_id = await platform.submit(10, chunk_size=1, max_attempts=1)
    settings = settings_for(proxied_url, lease_seconds=30)
    async with (
        open_delivery("outbox", settings, proxied, station.listener) as cut_off,
        open_delivery("outbox", settings_for(database_url), database, station.listener) as whole,
    ):
        with capture_logs() as lines:
            async with cut_off.consuming(
                gated, concurrency=1, prefetch_inputs=10, prefetch_seconds=0.5
            ):
                await until_claimed(platform, job_id, 10)
                await postgres_proxy.outage()
                await eventually(lambda: events(lines)["entries.given_back"] == 1)
                await postgres_proxy.listen()
                async with whole.consuming(other, worker="other"):
                    await eventually(lambda: len(other.ran) == 9)
                gated.gate.set()
                assert (await platform.until(job_id, "COMPLETED")).succeeded == 10
    assert not await platform.rows("SELECT FROM attempt")
    await platform.check_consistency()


async def test_a_job_in_other_hands_is_not_hoarded_by_who_gives_back_what_it_has_of_it(
    delivery: Delivery, platform: Platform, database: Database
) -> None:
    """What it could not give back had left its hands, so that it took as much again."""
    gated = Gated()
    await platform.submit(1)
    async with delivery.dispatching():
        with capture_logs() as lines:
            async with leasing(delivery, 20).consuming(
                gated,
                concurrency=1,
                prefetch_inputs=10,
                prefetch_seconds=0.1,
                # Until then nobody knows how long the first one takes.
                concurrency_window_seconds=2,
            ):
                await gated.started.wait()
                stuck = await platform.submit(60, chunk_size=1)
                await platform.rows(
                    "UPDATE job SET status = 'RUNNING', started_at = now() WHERE id = :id"
                    " RETURNING id",
                    id=stuck,
                )
                async with held(database, stuck):
                    delivery.listener.wake()
                    await eventually(lambda: events(lines)["release.put_aside"] == 1)
                    free = await platform.submit(1)
                    delivery.listener.wake()
                    gated.gate.set()
                    await platform.until(free, "COMPLETED")
                    assert await claimed(platform, stuck) <= 20
                await platform.until(stuck, "COMPLETED")
    assert not await platform.rows("SELECT FROM attempt")


async def test_a_claim_that_is_being_given_back_counts_as_no_lost_lease(
    delivery: Delivery, platform: Platform, database: Database
) -> None:
    await platform.submit(1)
    (claim,) = await claim_all(database)
    leases = Leases(database, delivery.queue("w"), lease_seconds=30)
    with capture_logs() as lines, leases.hold(claim) as lease:
        lease.is_given_back = True
        assert await database.fetch(release_entries([claim.entry_id], [claim.epoch], 0))
        await leases.extend_once()
        assert not lease.lost
    assert events(lines)["lease.lost"] == 0


async def test_one_entry_that_cannot_be_given_back_keeps_no_other_from_it(
    delivery: Delivery, platform: Platform, database: Database
) -> None:
    """All of its job that were given back with it were left to their leases, and charged."""
    await platform.submit(4, chunk_size=1)
    bad, *sound = await claim_all(database)
    releaser = Releaser(
        database,
        most=10,
        lock_seconds=1,
        commit_seconds=5,
        given_up=asyncio.Event(),
        wake=lambda: None,
    )
    async with a_bad_row(platform, f"OLD.id = {bad.entry_id}"), asyncio.TaskGroup() as group:
        running = group.create_task(releaser.run())
        given_back = await asyncio.gather(*map(releaser.release, [bad, *sound]))
        running.cancel()
    assert given_back == [False, True, True, True]


class Losing(Database):
    """Loses the answer to the first commit that settles."""

    has_lost = False

    async def fetch(self, statement: TextClause | Bound) -> Sequence[Row[Any]]:
        rows = await super().fetch(statement)
        if not self.has_lost and statement.text == _SETTLE_TEXT:
            self.has_lost = True
            raise Unavailable("the answer was lost")
        return rows


async def test_what_a_lost_answer_leaves_of_an_entry_is_given_back(
    database_url: str, delivery: Delivery, platform: Platform
) -> None:
    """Its second try was refused, and the neighbours, which never ran, were charged for that."""
    second, gate = asyncio.Event(), asyncio.Event()

    async def work(_claim: Claim, input_: ClaimedInput) -> Outcome:
        if input_.ordinal == 1:
            second.set()
            await gate.wait()
        return Succeeded()

    runner = Recorder(work)
    job_id = await platform.submit(5, chunk_size=5, max_attempts=1)
    await delivery.deliver()
    async with Losing.from_settings(settings_for(database_url), name="losing") as losing:
        with capture_logs() as lines:
            async with replace(delivery, database=losing).consuming(
                runner, concurrency=1, prefetch_inputs=10
            ) as stop:
                await second.wait()
                await eventually(lambda: events(lines)["input.refused_late"] == 1)
                stop.set()
                gate.set()
    async with delivery.dispatching(), delivery.consuming(runner, worker="next"):
        delivery.listener.wake()
        assert (await platform.until(job_id, "COMPLETED")).succeeded == 5
    assert sorted(ordinal for _, ordinal in runner.ran) == [0, 1, 2, 3, 4]
    assert not await platform.rows("SELECT FROM attempt")


async def test_the_commits_of_others_do_not_hasten_what_is_put_aside(
    delivery: Delivery, platform: Platform, database: Database
) -> None:
    """Each of them had it tried again at once, and its leases could not be extended in between."""
    stuck = await platform.submit(6, chunk_size=1)
    runner = GatedFor(stuck)
    with capture_logs() as lines:
        async with delivery.dispatching(), leasing(delivery, 2).consuming(runner, concurrency=8):
            await until_claimed(platform, stuck, 6)
            async with held(database, stuck):
                runner.gate.set()
                await eventually(lambda: events(lines)["settle.put_aside"] == 1)
                until = asyncio.get_running_loop().time() + 5
                while asyncio.get_running_loop().time() < until:
                    job_id = await platform.submit(20, chunk_size=1)
                    delivery.listener.wake()
                    await platform.until(job_id, "COMPLETED")
            await platform.until(stuck, "COMPLETED")
    assert Counter(ordinal for job_id, ordinal in runner.ran if job_id == stuck) == Counter(
        range(6)
    )
    assert events(lines)["input.refused_late"] == 0
    assert not await platform.rows("SELECT FROM attempt")


async def test_a_drain_ends_soon_whatever_waits_for_a_silent_postgres(
    proxied: Database, proxied_url: str, station: Delivery, platform: Platform,
    postgres_proxy: TcpProxy,
) -> None:  # fmt: skip
    """The claims of each job were given back in turn, and each waited for an answer."""
    gated = Gated()
    for _ in range(12):
        await platform.submit(1)
    settings = settings_for(proxied_url, lease_seconds=30, drain_seconds=0.1)
    async with open_delivery("outbox", settings, proxied, station.listener) as cut_off:
        with capture_logs() as lines:
            try:
                async with (
                    asyncio.timeout(20),
                    cut_off.consuming(
                        gated, concurrency=1, prefetch_inputs=40, prefetch_seconds=600
                    ) as stop,
                ):
                    await eventually(lambda: _are_claimed(platform, 12))
                    postgres_proxy.hold()
                    stop.set()
            finally:
                postgres_proxy.release()
    assert events(lines)["consumer.abandoned"] == 1


async def _are_claimed(platform: Platform, many: int) -> bool:
    (row,) = await platform.rows("SELECT count(*) AS n FROM outbox WHERE state = 'CLAIMED'")
    return bool(row.n == many)


@pytest.mark.parametrize(
    "trouble",
    [
        "UPDATE job SET succeeded = 1 WHERE id = :id RETURNING id",
        "CREATE TRIGGER refuse BEFORE UPDATE OF succeeded ON job EXECUTE FUNCTION refuse()",
    ],
    ids=["counters", "trigger"],
)
async def test_an_outcome_that_no_row_takes_is_left_to_the_lease_of_its_entry(
    delivery: Delivery, platform: Platform, trouble: str
) -> None:
    """Given back, its input would run again at once, for ever, and no attempt would count it."""
    await platform.rows(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN RAISE EXCEPTION ''no''; END'"
    )
    job_id = await platform.submit(1)
    runner = Gated()
    with capture_logs() as lines:
        async with (
            delivery.dispatching(),
            leasing(delivery, 30).consuming(runner),
        ):
            await runner.started.wait()
            await platform.rows(trouble, **({"id": job_id} if ":id" in trouble else {}))
            runner.gate.set()
            await eventually(lambda: events(lines)["entry.done"] == 1)
            other = await platform.submit(1)
            delivery.listener.wake()
            if ":id" in trouble:
                await platform.until(other, "COMPLETED")
    assert next(line["ended"] for line in lines if line["event"] == "entry.done") == "lost"
    assert [job for job, _ in runner.ran].count(job_id) == 1
    (entry,) = await platform.entries(job_id)
    assert entry.state == "CLAIMED"
