"""The relay keeps the queue shallow: what waits, waits in Postgres, where owners take turns."""

import asyncio
from collections import Counter
from uuid import UUID

from dispatcher.resender import Resender
from infra.database import Database
from schema.statements.claim import claim_ready
from schema.statements.control import cancel_job, pause_job
from schema.statements.relay import requeue_overdue
from tests.deliveries import Delivery
from tests.fairness import owners
from tests.integration.faults.stations import sqs_station, waiting
from tests.platform import KIND, Platform, Recorder, eventually
from tests.steps import control, sweep
from tests.stubs.sqs import SqsStub


async def sent(platform: Platform, job_id: UUID) -> int:
    return Counter(entry.state for entry in await platform.entries(job_id))["SENT"]


async def test_no_more_is_sent_than_the_window_holds_until_some_of_it_is_claimed(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    await platform.submit(100, chunk_size=1)
    relay = station.relay(relay_window=25, relay_batch=10)
    reports = [await relay.relay_once() for _ in range(4)]
    assert [report.locked for report in reports] == [10, 10, 5, 0]
    assert [report.full for report in reports] == [False, False, False, True]
    assert waiting(stub, station) == 25
    claims = await station.queue("w").claim(10, asyncio.Event())
    assert (await relay.relay_once()).sent == len(claims)
    assert (await relay.relay_once()).full


async def test_a_window_that_was_filled_is_filled_up_again_by_quarters_or_a_little_later(
    station: Delivery, platform: Platform
) -> None:
    await platform.submit(100, chunk_size=1)
    relay = station.relay(relay_window=40)
    queue = station.queue("w")
    assert (await relay.relay_once()).sent == 40
    claims = await queue.claim(1, asyncio.Event())
    report = await relay.relay_once()
    if report.sent:  # a quarter of a second has passed meanwhile
        assert report.sent == len(claims)
    else:
        assert report.full

        async def sent_all_the_same() -> bool:
            return (await relay.relay_once()).sent == len(claims)

        await eventually(sent_all_the_same)
    claims = [claim for _ in range(2) for claim in await queue.claim(10, asyncio.Event())]
    assert len(claims) >= 10
    assert (await relay.relay_once()).sent == len(claims)


async def test_another_dispatcher_may_exceed_the_window_by_a_batch(
    station: Delivery, platform: Platform
) -> None:
    """Both have counted before either has written down what it sent."""
    job_id = await platform.submit(100, chunk_size=1)
    one, other = (
        station.relay(worker, relay_window=25, relay_batch=20) for worker in ("one", "other")
    )
    await asyncio.gather(one.relay_once(), other.relay_once())
    await asyncio.gather(one.relay_once(), other.relay_once())
    assert await sent(platform, job_id) <= 25 + 20
    reports = await asyncio.gather(one.relay_once(), other.relay_once())
    assert all(report.full for report in reports)


async def test_a_kind_that_nobody_consumes_does_not_hold_up_the_others(
    station: Delivery, platform: Platform
) -> None:
    stuck = await platform.submit(100, chunk_size=1, kind="elsewhere")
    relay = station.relay(relay_window=10)
    await relay.relay_once()
    job_id = await platform.submit(5, chunk_size=1)
    report = await relay.relay_once()
    assert (report.sent, report.full) == (5, True)
    assert await sent(platform, stuck) == 10
    assert await sent(platform, job_id) == 5


async def test_a_lost_message_is_sent_again_and_keeps_its_place_in_the_window(
    station: Delivery, stub: SqsStub, platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(30, chunk_size=1)
    relay = station.relay(relay_window=10)
    assert (await relay.relay_once()).sent == 10
    stub.queue(station.settings.queue_url or "").purge()
    assert (await relay.relay_once()).full
    lost = {row.id for row in await database.fetch(requeue_overdue(0, most=100))}
    assert len(lost) == 10
    assert set((await relay.relay_once()).entry_ids) == lost
    assert await sent(platform, job_id) == 10


async def test_one_input_of_another_owner_is_sent_behind_the_window_and_no_more(
    station: Delivery, stub: SqsStub, database: Database
) -> None:
    large, small = await owners(database, 2)
    await large.submit(2_000, chunk_size=1)
    relay = station.relay(relay_window=20)
    await relay.relay_once()
    queue = station.queue("w")
    job_id = await small.submit(1)
    passed = 0
    while True:
        claims = await queue.claim(1, asyncio.Event())
        if claims[0].owner_id == small.owner_id:
            break
        passed += len(claims)
        await relay.relay_once()
    assert claims[0].job_id == job_id
    assert passed <= 20 + 1


async def test_pause_and_cancel_act_at_once_on_what_the_window_keeps_back(
    station: Delivery, stub: SqsStub, platform: Platform, database: Database
) -> None:
    paused = await platform.submit(1_000, chunk_size=1)
    cancelled = await platform.submit(1_000, chunk_size=1)
    relay = station.relay(relay_window=10)
    await relay.relay_once()
    await control(platform, pause_job, paused)
    await control(platform, cancel_job, cancelled)
    await sweep(database)
    assert (await relay.relay_once()).locked == 0
    assert waiting(stub, station) == 10
    assert not await platform.entries(cancelled)


async def test_a_window_that_is_full_is_looked_at_without_a_hot_loop_and_work_goes_on(
    stub: SqsStub, database: Database, database_url: str, platform: Platform
) -> None:
    async with sqs_station(stub, database, database_url, relay_window=10) as station:
        async with station.dispatching():
            job_id = await platform.submit(100, chunk_size=1)
            station.listener.wake()
            recorder = Recorder()
            async with station.consuming(recorder):
                await platform.until(job_id, "COMPLETED")
    assert len(recorder.ran) == 100
    await platform.check_consistency()


async def test_what_nobody_consumes_is_sent_again_ever_more_rarely(
    platform: Platform, database: Database
) -> None:
    """Each time leaves another copy in the queue, as the one before still lies there."""
    await platform.submit(1)
    resender = Resender(database, after_seconds=60, most=100, wake=lambda: None)

    async def missed_after_minutes() -> int:
        for minutes in range(1, 40):
            await platform.rows(
                "UPDATE outbox SET state = 'SENT',"
                " sent_at = now() - interval '1 second' - :minutes * interval '1 minute'"
                " RETURNING id",
                minutes=minutes,
            )
            if await resender.once():
                return minutes
        raise AssertionError("it is never sent again")

    assert [await missed_after_minutes() for _ in range(6)] == [1, 2, 4, 8, 16, 16]
    assert await database.fetch(claim_ready("w", 30, kinds=[KIND], most=1))
    await platform.rows(
        "UPDATE outbox SET state = 'PENDING', locked_by = NULL, locked_until = NULL RETURNING id"
    )
    assert await missed_after_minutes() == 1, (
        "a message came: the next one that is lost is soon missed"
    )
