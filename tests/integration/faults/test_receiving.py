"""Receiving from SQS while it refuses, hangs, limits or loses its queue: slower, never over."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from starlette.requests import Request

from consumer.assembly import assemble
from consumer.executor import Runner
from infra.database import Database
from infra.http import Health
from schema.errors import Unavailable, Unusable
from schema.outcome import Succeeded
from tests.deliveries import Delivery
from tests.integration.faults.stations import (
    log_lines,
    named,
    queue_url,
    show,
    sqs_queue,
    sqs_station,
    waiting,
)
from tests.integration.test_held_rows import held
from tests.platform import KIND, KINDS, Gated, Platform, Recorder, eventually, settings_for, stretch
from tests.stubs.postgres_wire import Matches, is_sync_after_execute
from tests.stubs.sqs import BlackHole, EmptyReceive, Refuse, SqsStub
from tests.stubs.sqs.faults import ACCESS_DENIED
from tests.stubs.tcp_proxy import Cut, TcpProxy


@asynccontextmanager
async def watched_consumer(
    station: Delivery, runner: Runner, health: Health
) -> AsyncIterator[None]:
    """Run a consumer whose health the test can ask for."""
    stop = asyncio.Event()
    settings = station.settings.model_copy(
        update={"liveness_timeout_seconds": health.liveness_timeout_seconds}
    )
    consumer = assemble(
        settings,
        "watched",
        station.database,
        station.queue("watched"),
        {KIND: runner},
        KINDS,
        stop,
        health=health,
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(consumer.run(stop))
        try:
            yield
        finally:
            stop.set()


async def lives(health: Health) -> bool:
    answer = await health.livez(Request({"type": "http"}))
    return bool(json.loads(bytes(answer.body))["status"] == "alive")


async def stuck(health: Health) -> bool:
    return not await lives(health)


async def test_one_refused_receive_is_followed_by_the_next(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    stub.faults.next("ReceiveMessage", Refuse("InternalError", 500))
    with log_lines() as lines:
        async with station.dispatching(), station.consuming(Recorder()):
            job_id = await platform.submit(3)
            await platform.until(job_id, "COMPLETED")
    assert len(named(lines, "receive.away")) == 1
    assert len(named(lines, "receive.recovered")) == 1


async def test_receives_that_are_always_denied_are_told_once_and_end_liveness_until_one_succeeds(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    health = Health(1.5)
    with log_lines() as lines:
        async with watched_consumer(station, Recorder(), health):
            await eventually(lambda: stub.calls["ReceiveMessage"] > 0)
            stub.faults.always("ReceiveMessage", ACCESS_DENIED)
            await eventually(lambda: stuck(health))
            refused = stub.calls["ReceiveMessage"]
            stub.faults.clear()
            await eventually(lambda: lives(health))
            job_id = await platform.submit(1)
            await station.deliver()
            await platform.until(job_id, "COMPLETED")
    assert refused <= 60, "a backoff of 0.2 s that doubles"
    assert len(named(lines, "receive.away")) == 1
    assert "AccessDenied" in named(lines, "receive.away")[0]["error"]


async def test_a_database_that_goes_away_within_a_claim_of_nothing_ends_the_polls_until_it_is_back(
    station: Delivery, stub: SqsStub, platform: Platform,
    proxied: Database, postgres_proxy: TcpProxy,
) -> None:  # fmt: skip
    """Whoever claims asks twice. Each receive in vain is counted, and as if all were well."""
    queue, stop = sqs_queue(replace(station, database=proxied)), asyncio.Event()
    await platform.submit(1)
    await station.deliver()
    assert await queue.claim(10, stop), "the driver asks no more about types"
    await platform.submit(1)
    await station.deliver()
    assert await station.queue("other").claim(10, stop)
    show(stub, station, 2)
    postgres_proxy.reset_at(second(is_sync_after_execute()), Cut.BEFORE)
    with pytest.raises(Unavailable):
        await queue.claim(10, stop)
    assert postgres_proxy.cut.is_set()
    received = stub.calls["ReceiveMessage"]
    await postgres_proxy.outage()
    with pytest.raises(Unavailable):
        await queue.claim(10, stop)
    assert stub.calls["ReceiveMessage"] == received


def second(matches: Matches) -> Matches:
    """Match the second message that matches."""
    left = [False, True]
    return lambda message: matches(message) and left.pop(0)


async def test_a_consumer_that_never_had_a_good_poll_is_alive_at_first_and_then_stuck(
    station: Delivery, stub: SqsStub
) -> None:
    health = Health(1.5)
    stub.faults.always("ReceiveMessage", ACCESS_DENIED)
    async with watched_consumer(station, Recorder(), health):
        await eventually(lambda: stub.calls["ReceiveMessage"] > 0)
        assert await lives(health)
        await eventually(lambda: stuck(health))
        stub.faults.clear()
        await eventually(lambda: lives(health))


async def test_a_consumer_whose_slots_are_all_busy_is_alive(
    station: Delivery, platform: Platform
) -> None:
    """Long work is no sign of death: with no slot free there is nothing to poll for."""
    health, gate = Health(3), asyncio.Event()

    async def long(_claim: object, _input: object) -> Succeeded:
        await gate.wait()
        return Succeeded()

    recorder = Recorder(long)
    job_id = await platform.submit(station.settings.concurrency, chunk_size=100)
    await station.deliver()
    async with watched_consumer(station, recorder, health):
        await recorder.started.wait()
        await stretch(4.5)
        assert await lives(health)
        gate.set()
        await platform.until(job_id, "COMPLETED")


async def test_a_receive_that_is_never_answered_is_given_up_and_repeated(
    stub: SqsStub, database: Database, database_url: str, platform: Platform
) -> None:
    async with sqs_station(stub, database, database_url, aws_read_timeout_seconds=1.5) as station:
        stub.faults.next("ReceiveMessage", BlackHole(), BlackHole(done=True))
        async with station.dispatching(), station.consuming(Recorder()):
            job_id = await platform.submit(3)
            await platform.until(job_id, "COMPLETED")
    await platform.check_consistency()


def test_a_read_timeout_within_the_wait_of_a_long_poll_is_refused() -> None:
    with pytest.raises(ValueError, match="READ_TIMEOUT"):
        settings_for("postgresql://x", aws_read_timeout_seconds=20, receive_wait_seconds=20)


async def test_open_polls_leave_room_for_deletes(
    stub: SqsStub, database: Database, database_url: str, platform: Platform
) -> None:
    """As many polls as connections, each open for 20 s: deletes have connections of their own."""
    async with sqs_station(
        stub,
        database,
        database_url,
        receivers=2,
        relay_concurrency=1,
        aws_connections=2,
        receive_wait_seconds=20,
    ) as station:
        queue = stub.queue(queue_url(station))
        async with station.consuming(Recorder()) as stop:
            for _ in range(5):
                await eventually(lambda: len(queue.polls) == 2)
                await platform.submit(2)
                await station.deliver()
                await eventually(lambda: waiting(stub, station) == 0)
            stop.set()
            for poll in list(queue.polls):
                poll.cancel()
                poll.answer([])


def test_fewer_connections_than_open_polls_are_refused() -> None:
    with pytest.raises(ValueError, match="AWS_CONNECTIONS"):
        settings_for("postgresql://x", receivers=8, relay_concurrency=1, aws_connections=7)


def test_fewer_connections_than_both_relays_use_are_refused() -> None:
    with pytest.raises(ValueError, match="AWS_CONNECTIONS"):
        settings_for("postgresql://x", relay_concurrency=4, aws_connections=7)


async def test_empty_answers_at_the_in_flight_limit_do_not_make_a_hot_loop(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    """A slow machine asks less often: the bound is on calls, over at least two seconds."""
    job_id = await platform.submit(1)
    await station.deliver()
    stub.faults.always("ReceiveMessage", EmptyReceive())
    async with station.consuming(Recorder()):
        await stretch(2)
        assert stub.calls["ReceiveMessage"] <= 60
        stub.faults.clear()
        await platform.until(job_id, "COMPLETED")


async def test_short_polls_of_an_empty_queue_do_not_make_a_hot_loop(
    stub: SqsStub, database: Database, database_url: str
) -> None:
    async with sqs_station(stub, database, database_url, receive_wait_seconds=0) as station:
        async with station.consuming(Recorder()):
            await stretch(2)
            assert stub.calls["ReceiveMessage"] <= 60


async def test_a_queue_that_was_deleted_is_not_ready_and_work_goes_on_when_it_is_back(
    stub: SqsStub, database: Database, database_url: str, platform: Platform
) -> None:
    """What was in it is sent again; the consumer is the same process all along."""
    async with sqs_station(
        stub, database, database_url, lease_seconds=1, resend_after_seconds=1.5
    ) as station:
        assert station.sqs is not None
        url = queue_url(station)
        queue = sqs_queue(station)
        lost = await platform.submit(5, chunk_size=1)
        await station.deliver()
        await station.sqs.delete_queue(QueueUrl=url)
        with pytest.raises(Unusable, match="NonExistentQueue"):
            await queue.ping()
        async with station.dispatching(), station.consuming(Recorder()):
            unsent = await platform.submit(5, chunk_size=1)
            station.listener.wake()
            refused = stub.calls["ReceiveMessage"] + 3
            await eventually(lambda: stub.calls["ReceiveMessage"] >= refused)
            await station.sqs.create_queue(QueueName=url.rsplit("/", 1)[-1])
            await queue.ping()
            for job_id in (lost, unsent):
                await platform.until(job_id, "COMPLETED", timeout_seconds=60)
    await platform.check_consistency()


async def test_what_another_consumer_was_starting_is_claimed_before_the_next_poll(
    stub: SqsStub, station: Delivery, platform: Platform, database: Database
) -> None:
    """Two that met at a new job left chunks of it to the relay, for two seconds."""
    started, free = await platform.submit(2, chunk_size=1), await platform.submit(1)
    await station.deliver()
    queue, stop = sqs_queue(station), asyncio.Event()
    async with held(database, started):
        (claim,) = await queue.claim(10, stop)
        assert claim.job_id == free
    polls = stub.calls["ReceiveMessage"]
    claims = await queue.claim_rest(stop)
    assert [claim.job_id for claim in claims] == [started] * 2
    assert stub.calls["ReceiveMessage"] == polls


async def test_a_start_that_takes_another_consumer_a_while_is_waited_for(
    stub: SqsStub, station: Delivery, platform: Platform, database: Database
) -> None:
    """A poll of whole new jobs that another was starting was left to the relay as a whole."""
    started = await platform.submit(2, chunk_size=1)
    await station.deliver()
    queue = sqs_queue(station)
    async with asyncio.TaskGroup() as group:
        async with held(database, started):
            claiming = group.create_task(queue.claim(10, asyncio.Event()))
            await eventually(lambda: stub.calls["ReceiveMessage"] == 1)
            await stretch(0.06)
    assert [claim.job_id for claim in claiming.result()] == [started] * 2


@pytest.mark.parametrize("is_stopped", [False, True], ids=["full", "stopped"])
async def test_what_is_left_beside_a_claim_does_not_wait_for_room(
    station: Delivery, platform: Platform, database: Database, *, is_stopped: bool
) -> None:
    """Hidden in a consumer that had no room, or had ended, it waited for a lease."""
    await platform.submit(10, chunk_size=10)
    left = await platform.submit(1)
    gated, other = Gated(), Recorder()
    patient = replace(station, settings=station.settings.model_copy(update={"lease_seconds": 600}))
    async with patient.consuming(gated, worker="one", concurrency=4, drain_seconds=0.1) as stop:
        async with held(database, left):
            await patient.deliver()
            await gated.started.wait()
            if is_stopped:
                stop.set()
        async with patient.dispatching(), patient.consuming(other, worker="two"):
            await platform.until(left, "COMPLETED", timeout_seconds=60)
        gated.gate.set()
        stop.set()
