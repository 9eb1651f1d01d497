"""Leases under faults: kept while work runs, lost on time, and never written under afterwards."""

import asyncio

from infra.database import Database
from infra.queue.protocol import Claim, ClaimedInput
from schema.outcome import Outcome, Succeeded
from schema.statements.claim import claim_ready, extend_leases, release_entries
from tests.deliveries import Delivery, open_delivery
from tests.integration.faults.stations import log_lines, named, sqs_station
from tests.platform import KIND, Gated, Platform, Recorder, eventually, settings_for
from tests.stubs.sqs import SqsStub
from tests.stubs.tcp_proxy import TcpProxy


class Interrupted(Recorder):
    """Work that goes on until it is cancelled, and notes that it was."""

    def __init__(self) -> None:
        super().__init__(self._work)
        self.cancelled: list[int] = []

    async def _work(self, _claim: Claim, input_: ClaimedInput) -> Outcome:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append(input_.ordinal)
            raise
        return Succeeded()


async def test_work_is_stopped_when_its_lease_cannot_be_extended_in_time(
    proxied: Database, proxied_url: str, stub: SqsStub, platform: Platform,
    postgres_proxy: TcpProxy,
) -> None:  # fmt: skip
    """Postgres does not answer: what runs is cancelled, what waits for a slot never starts."""
    interrupted = Interrupted()
    job_id = await platform.submit(4, chunk_size=2)
    async with sqs_station(
        stub, proxied, proxied_url, lease_seconds=2, concurrency=1, prefetch_inputs=4
    ) as station:
        await station.deliver()
        with log_lines() as lines:
            async with station.consuming(interrupted):
                await eventually(lambda: _claimed(platform, 2))
                postgres_proxy.hold()
                await eventually(lambda: bool(interrupted.cancelled))
                await eventually(lambda: len(named(lines, "lease.lost")) == 2)
                postgres_proxy.release()
                await eventually(lambda: len(named(lines, "entry.done")) >= 2)
    assert interrupted.cancelled == [0]
    assert not interrupted.ran
    assert {line["ended"] for line in named(lines, "entry.done")} == {"lost"}
    assert (await platform.job(job_id)).succeeded == 0
    await platform.check_consistency()


async def _claimed(platform: Platform, many: int) -> bool:
    rows = await platform.rows("SELECT count(*) AS n FROM outbox WHERE state = 'CLAIMED'")
    return bool(rows[0].n == many)


async def test_a_consumer_that_stood_still_past_its_lease_writes_nothing(
    proxied: Database, proxied_url: str, database: Database, database_url: str,
    platform: Platform, postgres_proxy: TcpProxy, station: Delivery,
) -> None:  # fmt: skip
    """As after SIGSTOP: its packets stop, another one takes over and finishes, then it goes on."""
    gate = asyncio.Event()

    async def wait(_claim: Claim, _input: ClaimedInput) -> Outcome:
        await gate.wait()
        return Succeeded({"by": "the slow one"})

    slow = Recorder(wait)
    settings = settings_for(proxied_url, lease_seconds=2)
    with log_lines() as lines:
        async with open_delivery("outbox", settings, proxied, station.listener) as stalled:
            job_id = await platform.submit(1)
            async with stalled.consuming(slow, worker="stalled"):
                await slow.started.wait()
                postgres_proxy.hold()
                gate.set()
                async with (
                    open_delivery(
                        "outbox", settings_for(database_url), database, station.listener
                    ) as live,
                    live.dispatching(),
                    live.consuming(
                        Recorder(lambda *_: Succeeded({"by": "its successor"})), worker="live"
                    ),
                ):
                    job = await platform.until(job_id, "COMPLETED")
                postgres_proxy.release()
                await eventually(lambda: _ended(lines, "lost"))
    assert job.succeeded == 1
    (row,) = await platform.rows("SELECT result, attempts FROM input")
    assert (row.result, row.attempts) == ({"by": "its successor"}, 2)
    await platform.check_consistency()


def _ended(lines: list[dict[str, object]], how: str) -> bool:
    return how in {line["ended"] for line in named(lines, "entry.done")}


async def test_a_lease_that_has_ended_is_neither_extended_nor_given_back(
    platform: Platform, database: Database
) -> None:
    await platform.submit(1)
    (row,) = await database.fetch(claim_ready("w", 30, kinds=[KIND], most=1))
    held = ([row.entry_id], [row.epoch])

    async def is_extended() -> bool:
        (answer,) = await database.fetch(extend_leases(*held, [row.job_id], 30))
        assert answer.job_status == "RUNNING"
        return bool(answer.is_held)

    assert await is_extended()
    await platform.rows("UPDATE outbox SET locked_until = now() - interval '1 ms' RETURNING id")
    assert not await is_extended()
    assert not await database.fetch(release_entries(*held, 0))
    (entry,) = await platform.rows("SELECT state, locked_by FROM outbox")
    assert tuple(entry) == ("CLAIMED", "w")


async def test_one_connection_is_enough_for_everything_a_consumer_does(
    database_url: str, platform: Platform, station: Delivery
) -> None:
    """No unit of work asks for a second connection while it holds one."""
    settings = settings_for(database_url, database_pool_size=1)
    async with (
        Database.from_settings(settings, name="narrow") as narrow,
        open_delivery("outbox", settings, narrow, station.listener) as delivery,
        delivery.dispatching(),
        delivery.consuming(Recorder(), concurrency=20),
    ):
        jobs = [await platform.submit(20, chunk_size=2) for _ in range(5)]
        for job_id in jobs:
            await platform.until(job_id, "COMPLETED")


async def test_no_transaction_is_open_while_a_processor_works(
    station: Delivery, platform: Platform
) -> None:
    recorder = Gated()
    job_id = await platform.submit(4, chunk_size=2)
    await station.deliver()
    async with station.consuming(recorder):
        await eventually(lambda: _claimed(platform, 2))
        open_now = await platform.rows(
            "SELECT query FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'"
        )
        recorder.gate.set()
        await platform.until(job_id, "COMPLETED")
    assert not open_now


async def test_one_slow_input_of_ten_does_not_hold_up_the_other_nine(
    station: Delivery, platform: Platform
) -> None:
    gate = asyncio.Event()
    job_id = await platform.submit(10)

    async def one_waits(claim: Claim, input_: ClaimedInput) -> Outcome:
        if (claim.job_id, input_.ordinal) == (job_id, 0):
            await gate.wait()
        return Succeeded()

    await station.deliver()
    async with station.consuming(Recorder(one_waits), concurrency=2):
        await eventually(lambda: _succeeded(platform, job_id, 9))
        next_job = await platform.submit(5)
        await station.deliver()
        await platform.until(next_job, "COMPLETED")
        gate.set()
        await platform.until(job_id, "COMPLETED")


async def _succeeded(platform: Platform, job_id: object, many: int) -> bool:
    rows = await platform.rows("SELECT succeeded FROM job WHERE id = :id", id=job_id)
    return bool(rows[0].succeeded == many)
