"""Sessions that go silent while Postgres is there, and outages shorter than a lease."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import TextClause, text

from infra.database import Database, rows_of
from infra.settings import Settings
from infra.wakeup import Listener
from schema.errors import Unavailable
from schema.statements.bound import Bound
from tests.deliveries import Delivery
from tests.integration.faults.stations import log_lines, named, sqs_station
from tests.platform import Gated, Platform, Recorder, eventually, settings_for, stretch
from tests.stubs.sqs import SqsStub
from tests.stubs.tcp_proxy import TcpProxy

LEASE_SECONDS = 6


@pytest.fixture
def settings(proxied_url: str) -> Settings:
    return settings_for(
        proxied_url, database_connect_timeout_seconds=1, statement_timeout_seconds=30
    )


@pytest.fixture
async def proxied(settings: Settings) -> AsyncIterator[Database]:
    """The consumer's own way to Postgres; what the test itself asks goes another."""
    async with Database.from_settings(settings, name="proxied") as database:
        yield database


@pytest.fixture
async def far(
    stub: SqsStub, proxied: Database, proxied_url: str, database_url: str
) -> AsyncIterator[Delivery]:
    """A consumer behind the proxy, all but its listener: no wake-up of it hastens anything."""
    listener = Listener(settings_for(database_url), name="far")
    async with (
        sqs_station(
            stub, proxied, proxied_url, lease_seconds=LEASE_SECONDS, drain_seconds=12
        ) as station,
        asyncio.TaskGroup() as group,
    ):
        listening = group.create_task(listener.run())
        yield replace(station, listener=listener)
        listening.cancel()


@asynccontextmanager
async def at_work(
    far: Delivery, near: Database, runner: Recorder
) -> AsyncIterator[tuple[asyncio.Event, list[Any]]]:
    """Consume far away, while what relays and repairs is near."""
    with log_lines() as lines:
        async with (
            replace(far, database=near).dispatching(),
            far.consuming(runner, concurrency=4) as stop,
        ):
            yield stop, lines


async def leases(platform: Platform) -> list[Any]:
    rows = await platform.rows("SELECT locked_until FROM outbox WHERE state = 'CLAIMED'")
    return sorted(row.locked_until for row in rows)


async def extended(platform: Platform, before: list[Any]) -> bool:
    after = await leases(platform)
    return len(after) == len(before) and after[0] > before[-1]


async def in_hand(platform: Platform, many: int) -> bool:
    return len(await leases(platform)) == many


@asynccontextmanager
async def three_held(
    far: Delivery, near: Database, platform: Platform
) -> AsyncIterator[tuple[list[Any], list[Any]]]:
    """Give the lines of the log, and the ends of three leases; afterwards their job completes."""
    gated = Gated()
    job_id = await platform.submit(3, chunk_size=1, max_attempts=1)
    await far.deliver()
    async with at_work(far, near, gated) as (_, lines):
        await eventually(lambda: in_hand(platform, 3))
        yield lines, await leases(platform)
        gated.gate.set()
        await platform.until(job_id, "COMPLETED", timeout_seconds=60)


async def test_one_silent_session_costs_no_lease(
    far: Delivery, platform: Platform, database: Database, postgres_proxy: TcpProxy
) -> None:
    async with three_held(far, database, platform) as (lines, before):
        postgres_proxy.leave_half_open()
        await eventually(lambda: extended(platform, before), timeout_seconds=30)
    assert not named(lines, "lease.lost")
    assert len(named(lines, "lease.not_extended")) == 1


async def test_an_outage_that_ends_before_the_leases_costs_none(
    far: Delivery, platform: Platform, database: Database, postgres_proxy: TcpProxy
) -> None:
    """They were asked for again a third of a lease later, when it was too late."""
    async with three_held(far, database, platform) as (lines, first):
        await eventually(lambda: extended(platform, first), timeout_seconds=30)
        before = await leases(platform)
        await stretch(0.3 * LEASE_SECONDS)
        await postgres_proxy.outage()
        await stretch(0.4 * LEASE_SECONDS)
        await postgres_proxy.listen()
        await eventually(lambda: extended(platform, before), timeout_seconds=30)
    assert not named(lines, "lease.lost")


async def test_an_outcome_on_a_silent_session_is_committed_within_the_drain(
    far: Delivery, platform: Platform, database: Database, postgres_proxy: TcpProxy
) -> None:
    gated = Gated()
    job_id = await platform.submit(1, max_attempts=1)
    await far.deliver()
    async with at_work(far, database, gated) as (stop, lines):
        await gated.started.wait()
        postgres_proxy.leave_half_open()
        gated.gate.set()
        stop.set()
    assert not named(lines, "settle.given_up")
    await platform.until(job_id, "COMPLETED", timeout_seconds=60)
    assert not await platform.rows("SELECT FROM attempt WHERE error_class = 'WorkerLost'")


@pytest.mark.parametrize("way", ["statement", "unit"])
async def test_after_a_silence_no_session_from_before_is_used(
    proxied: Database, postgres_proxy: TcpProxy, way: str
) -> None:
    """One after the other would be silent for as long."""
    nap = text("SELECT pg_sleep(0.2)")

    async def ask() -> None:
        if way == "unit":
            await proxied.run(lambda connection: rows_of(connection, nap))
        else:
            await proxied.fetch(nap)

    await asyncio.gather(*[ask() for _ in range(4)])
    postgres_proxy.leave_half_open()
    with pytest.raises(Unavailable, match="did not answer within"):
        await proxied.answered_within(0.2, ask())
    await asyncio.gather(*[proxied.answered_within(5, ask()) for _ in range(4)])


class Frozen(Database):
    """Postgres stands still as a claim arrives, and carries it out when it goes on."""

    until: float | None = None
    late: asyncio.Task[Any] | None = None

    async def fetch(self, statement: TextClause | Bound) -> Any:
        clock = asyncio.get_running_loop().time
        if self.until is not None and clock() < self.until:
            await stretch(min(0.5, self.until - clock()))
            raise Unavailable("it stands still")
        if self.until is None and "claimed AS" in str(getattr(statement, "text", "")):
            self.until = clock() + 1.7 * LEASE_SECONDS
            self.late = asyncio.create_task(self._carry_out(statement, self.until - clock()))
            await asyncio.Event().wait()
        return await super().fetch(statement)

    async def _carry_out(self, statement: TextClause | Bound, seconds: float) -> Any:
        await stretch(seconds)
        return await super().fetch(statement)

    def has_carried_out(self) -> bool:
        return self.late is not None and self.late.done()


@pytest.mark.parametrize("mode", ["outbox", "sqs"])
async def test_a_claim_that_is_carried_out_more_than_a_lease_later_is_given_back(
    mode: str, station: Delivery, platform: Platform, database: Database, database_url: str
) -> None:
    """In SQS mode nothing is claimed while Postgres is away: the search must not end meanwhile."""
    job_id = await platform.submit(5, chunk_size=5, max_attempts=1)
    settings = settings_for(database_url, lease_seconds=LEASE_SECONDS)
    recorder = Recorder()
    async with Frozen.from_settings(settings, name="frozen") as frozen:
        if mode == "outbox":
            delivery = Delivery("outbox", settings, frozen, station.listener)
        else:
            await station.deliver()
            own = station.settings.model_copy(update={"lease_seconds": LEASE_SECONDS})
            delivery = replace(station, database=frozen, settings=own)
        async with delivery.consuming(recorder):
            await eventually(frozen.has_carried_out, timeout_seconds=60)
            assert frozen.late is not None
            assert frozen.late.result()
            async with replace(delivery, database=database).dispatching():
                await platform.until(job_id, "COMPLETED", timeout_seconds=60)
    assert len(recorder.ran) == 5
