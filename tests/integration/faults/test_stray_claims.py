"""Claims whose answer was lost are given back by whoever made them, and charged to nobody."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import TextClause
from structlog.testing import capture_logs

from consumer.lease import Leases
from consumer.releaser import Releaser
from consumer.strays import Strays
from infra.database import Database
from infra.queue.claiming import Claiming
from schema.errors import Unavailable
from schema.statements.bound import Bound
from schema.statements.claim import take_over_lapsed
from tests.deliveries import Delivery, open_delivery
from tests.integration.faults.test_bad_rows import a_bad_row
from tests.integration.test_held_rows import events, held, leasing
from tests.platform import Platform, Recorder, eventually, settings_for, stretch
from tests.steps import claim_all
from tests.stubs.tcp_proxy import TcpProxy


class Losing(Database):
    """Loses the answer to the first claim that took anything."""

    which = 1
    claims = 0
    lost = 0

    async def fetch(self, statement: TextClause | Bound) -> Sequence[Row[Any]]:
        rows = await super().fetch(statement)
        if rows and getattr(rows[0], "ordinals", None):
            self.claims += 1
            if self.claims == self.which:
                self.lost += 1
                raise Unavailable("the answer was lost")
        return rows


class LosingTheSecond(Losing):
    """Loses the answer to the second claim that took anything."""

    which = 2


class Silent(Losing):
    """Never gives the answer to the first claim that took anything."""

    async def fetch(self, statement: TextClause | Bound) -> Sequence[Row[Any]]:
        try:
            return await super().fetch(statement)
        except Unavailable:
            await asyncio.get_running_loop().create_future()
            raise


class Hands(NamedTuple):
    """What a worker has in its hands, and what is on its way there."""

    claiming: Claiming
    leases: Leases


async def test_a_claim_whose_answer_was_lost_is_given_back_before_its_lease_ends(
    delivery: Delivery, platform: Platform, database_url: str
) -> None:
    """Each of its inputs was charged an attempt, and died of it, though nothing had run."""
    runner = Recorder()
    job_id = await platform.submit(5, chunk_size=5, max_attempts=1)
    await delivery.deliver()
    async with Losing.from_settings(settings_for(database_url), name="losing") as losing:
        cut_off = leasing(replace(delivery, database=losing), 10)
        with capture_logs() as lines:
            async with delivery.dispatching(), cut_off.consuming(runner, receivers=2):
                assert (await platform.until(job_id, "COMPLETED")).succeeded == 5
        assert losing.lost == 1
    assert events(lines)["entry.recovered"] == 1
    assert sorted(ordinal for _, ordinal in runner.ran) == [0, 1, 2, 3, 4]
    assert not await platform.rows("SELECT FROM attempt")


async def test_a_claim_that_is_never_answered_is_given_back_before_its_lease_ends(
    delivery: Delivery, platform: Platform, database_url: str
) -> None:
    """The driver waits for an answer for longer than a lease lasts."""
    job_id = await platform.submit(5, chunk_size=5, max_attempts=1)
    await delivery.deliver()
    async with Silent.from_settings(settings_for(database_url), name="silent") as silent:
        cut_off = leasing(replace(delivery, database=silent), 10)
        async with delivery.dispatching(), cut_off.consuming(Recorder()):
            assert (await platform.until(job_id, "COMPLETED")).succeeded == 5
    assert silent.lost == 1
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


@asynccontextmanager
async def looking(delivery: Delivery, *, lease_seconds: float) -> AsyncIterator[Hands]:
    """Look for strays of ``worker`` beside whatever it holds."""
    queue, database = delivery.queue("worker"), delivery.database
    leases = Leases(database, queue, lease_seconds=lease_seconds)
    given_up = asyncio.Event()
    releaser = Releaser(
        database,
        most=10,
        lock_seconds=0.2,
        commit_seconds=5,
        given_up=given_up,
        wake=lambda: None,
    )
    strays = Strays(
        database,
        queue.claiming,
        leases,
        releaser,
        worker="worker",
        lease_seconds=lease_seconds,
    )
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each.run()) for each in (releaser, strays, leases)]
        yield Hands(queue.claiming, leases)
        for task in tasks:
            task.cancel()


async def states(platform: Platform) -> dict[int, str]:
    rows = await platform.rows("SELECT id, state FROM outbox ORDER BY id")
    return {row.id: row.state for row in rows}


async def test_what_is_in_hand_or_was_left_to_its_lease_is_not_given_back(
    delivery: Delivery, platform: Platform, database: Database
) -> None:
    """What ran and could not be recorded would run again, and no attempt would count it."""
    await platform.submit(3, chunk_size=1)
    claims = await claim_all(database)
    kept, left, stray = [claim.entry_id for claim in claims]
    async with looking(delivery, lease_seconds=30) as hands:
        with hands.leases.hold(claims[0]):
            with hands.leases.hold(claims[1]):
                pass  # it was lost
            hands.claiming.failed.set()
            await eventually(lambda: _is(platform, stray, "PENDING"))
            assert await states(platform) == {kept: "CLAIMED", left: "CLAIMED", stray: "PENDING"}


async def test_what_the_reaper_holds_for_us_is_not_given_back(
    delivery: Delivery, platform: Platform, database: Database
) -> None:
    """What had run would not be charged, and an input that kills its worker would run again."""
    await platform.submit(2, chunk_size=1)
    (lapsed,) = await claim_all(database, lease_seconds=0.01, most=1)
    taken_over = await eventually_rows(database, take_over_lapsed(30, most=10))
    assert [row.entry_id for row in taken_over] == [lapsed.entry_id]
    (stray,) = await claim_all(database)
    async with looking(delivery, lease_seconds=30) as hands:
        hands.claiming.failed.set()
        await eventually(lambda: _is(platform, stray.entry_id, "PENDING"))
    assert (await states(platform))[lapsed.entry_id] == "CLAIMED"


async def eventually_rows(database: Database, statement: Bound) -> Sequence[Row[Any]]:
    found: list[Sequence[Row[Any]]] = []

    async def are_found() -> bool:
        found.append(await database.fetch(statement))
        return bool(found[-1])

    await eventually(are_found)
    return found[-1]


async def test_what_is_on_its_way_into_our_hands_is_not_given_back(
    delivery: Delivery, platform: Platform, database: Database
) -> None:
    """However long it takes: its inputs would start twice."""
    await platform.submit(2, chunk_size=1)
    claims = await claim_all(database)
    async with looking(delivery, lease_seconds=5) as hands:
        with hands.claiming.call():
            hands.claiming.failed.set()
            await stretch(1.5)  # three looks
            assert set((await states(platform)).values()) == {"CLAIMED"}
            lease = hands.leases.hold(claims[0])
            lease.__enter__()
        await eventually(lambda: _is(platform, claims[1].entry_id, "PENDING"))
        assert (await states(platform))[claims[0].entry_id] == "CLAIMED"
        lease.__exit__(None, None, None)


async def test_a_stray_of_which_a_row_is_held_keeps_no_other_from_going_back(
    delivery: Delivery, platform: Platform, database: Database
) -> None:
    stuck, _free = await platform.submit(1), await platform.submit(1)
    first, second = await claim_all(database, lease_seconds=2)
    async with looking(delivery, lease_seconds=2) as hands:
        async with held(database, stuck):
            hands.claiming.failed.set()
            await eventually(lambda: _is(platform, second.entry_id, "PENDING"))
            assert (await states(platform))[first.entry_id] == "CLAIMED"
            await stretch(3)  # its lease is kept alive meanwhile
        await eventually(lambda: _is(platform, first.entry_id, "PENDING"))


async def _is(platform: Platform, entry_id: int, state: str) -> bool:
    return (await states(platform))[entry_id] == state


async def test_a_claim_that_commits_when_nobody_waits_for_it_any_more_is_given_back(
    proxied: Database, proxied_url: str, database: Database, station: Delivery,
    platform: Platform, postgres_proxy: TcpProxy,
) -> None:  # fmt: skip
    """Postgres does not notice that a client has gone while it carries out its statement."""
    await platform.rows(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN PERFORM pg_sleep(0.7); RETURN NEW; END'"
    )
    await platform.rows(
        "CREATE TRIGGER slow BEFORE UPDATE ON outbox FOR EACH ROW"
        " WHEN (NEW.state = 'CLAIMED' AND OLD.epoch = 0) EXECUTE FUNCTION slow()"
    )
    job_id, runner = await platform.submit(1, max_attempts=1), Recorder()
    settings = settings_for(proxied_url, lease_seconds=5)
    async with open_delivery("outbox", settings, proxied, station.listener) as cut_off:
        async with replace(cut_off, database=database).dispatching(), cut_off.consuming(runner):
            await eventually(lambda: _claims(platform))
            postgres_proxy.reset()
            await platform.until(job_id, "COMPLETED")
    assert not await platform.rows("SELECT FROM attempt")


async def _claims(platform: Platform) -> bool:
    rows = await platform.rows("SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
    return bool(rows)


async def test_an_answer_that_is_lost_while_claiming_one_by_one_is_noted_too(
    delivery: Delivery, platform: Platform, database_url: str
) -> None:
    """Something had been claimed before, and was carried; that a claim had failed, nobody knew."""
    jobs = [await platform.submit(1, max_attempts=1) for _ in range(4)]
    bad = await platform.submit(1)
    await delivery.deliver()
    runner = Recorder()
    settings = settings_for(database_url)
    async with LosingTheSecond.from_settings(settings, name="losing") as losing:
        cut_off = leasing(replace(delivery, database=losing), 10)
        async with (
            a_bad_row(platform, f"NEW.state = 'CLAIMED' AND OLD.job_id = '{bad}'"),
            delivery.dispatching(),
            cut_off.consuming(runner, receivers=1),
        ):
            for job_id in jobs:
                await platform.until(job_id, "COMPLETED")
    assert losing.lost == 1
    assert not await platform.rows("SELECT FROM attempt")


async def test_a_claim_that_waited_long_for_a_connection_is_not_lost_on_arrival(
    delivery: Delivery, platform: Platform, database_url: str
) -> None:
    """Its lease in Postgres was fresh, however long ago it had been asked for."""
    job_id = await platform.submit(2, max_attempts=1)
    await delivery.deliver()
    taken, gate = asyncio.Event(), asyncio.Event()

    async def hold(_connection: AsyncConnection) -> None:
        taken.set()
        await gate.wait()

    settings = settings_for(database_url, database_pool_size=1)
    async with Database.from_settings(settings, name="narrow") as narrow:
        starved = leasing(replace(delivery, database=narrow), 2)
        async with asyncio.TaskGroup() as group:
            group.create_task(narrow.run(hold))
            await taken.wait()
            with capture_logs() as lines:
                async with delivery.dispatching(), starved.consuming(Recorder()):
                    await stretch(2.5)
                    gate.set()
                    await platform.until(job_id, "COMPLETED")
    assert events(lines)["lease.lost"] == 0


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
            assert lease.expires_at - now() < 10.1  # Postgres may know better, and is asked
            async with asyncio.timeout(4):  # the usual time is ten seconds away
                await eventually(lambda: lease.expires_at - now() > 20)
        keepalive.cancel()
