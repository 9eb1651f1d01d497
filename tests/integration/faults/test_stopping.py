"""Told to stop: what an open poll brings is not lost, and a dead SQS does not hold the process."""

import asyncio

from infra.database import Database
from schema.outcome import Succeeded
from tests.deliveries import Delivery
from tests.integration.faults.stations import all_done, queue_url, sqs_station, waiting
from tests.platform import Platform, Recorder, eventually
from tests.stubs.sqs import BlackHole, SqsStub


async def test_a_message_that_an_open_poll_brings_after_the_signal_is_given_back_at_once(
    stub: SqsStub, database: Database, database_url: str, platform: Platform
) -> None:
    async with sqs_station(stub, database, database_url, receive_wait_seconds=5) as station:
        queue = stub.queue(queue_url(station))
        recorder = Recorder()
        async with station.consuming(recorder) as stop:
            await eventually(lambda: len(queue.polls) == 1)
            stop.set()
            job_id = await platform.submit(3)
            assert (await station.relay().relay_once()).sent == 1
        assert not recorder.ran
        (entry,) = await platform.entries(job_id)
        assert (entry.state, entry.locked_by) == ("PENDING", None)
        assert waiting(stub, station) == 0
        polls = stub.calls["ReceiveMessage"]
        async with station.dispatching(), station.consuming(Recorder(), worker="next"):
            assert polls == 1, "no poll was begun after the signal"
            station.listener.wake()
            job = await platform.until(job_id, "COMPLETED")
        assert job.succeeded == 3
    assert not await platform.rows("SELECT * FROM attempt")


async def test_what_waits_for_a_slot_when_the_signal_comes_is_visible_to_others_at_once(
    stub: SqsStub, database: Database, database_url: str, platform: Platform
) -> None:
    """Ten in hand, one runs: nine entries are due again, and none of their messages is hidden."""
    gate = asyncio.Event()

    async def wait(_claim: object, _input: object) -> Succeeded:
        await gate.wait()
        return Succeeded()

    recorder = Recorder(wait)
    async with sqs_station(
        stub, database, database_url, concurrency=1, prefetch_inputs=10, lease_seconds=600,
        resend_after_seconds=900,
    ) as station:  # fmt: skip
        job_id = await platform.submit(10, chunk_size=1)
        await station.deliver()
        async with station.consuming(recorder) as stop:
            await recorder.started.wait()
            await eventually(lambda: _all_claimed(platform))
            stop.set()
            gate.set()
        entries = await platform.entries(job_id)
        assert [(entry.state, entry.locked_by) for entry in entries] == [("PENDING", None)] * 9
        assert len(recorder.ran) == 1
        assert waiting(stub, station) == 0


async def _all_claimed(platform: Platform) -> bool:
    rows = await platform.rows("SELECT count(*) AS n FROM outbox WHERE state = 'CLAIMED'")
    return bool(rows[0].n == 10)


async def test_no_poll_begins_after_the_signal_when_the_consumer_was_full(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    gate = asyncio.Event()

    async def wait(_claim: object, _input: object) -> Succeeded:
        await gate.wait()
        return Succeeded()

    recorder = Recorder(wait)
    await platform.submit(1)
    await station.deliver()
    async with station.consuming(recorder, concurrency=1) as stop:
        await recorder.started.wait()
        polls = stub.calls["ReceiveMessage"]
        stop.set()
        gate.set()
    assert stub.calls["ReceiveMessage"] == polls


async def test_work_that_ended_during_the_drain_is_deleted_from_the_queue(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    gate = asyncio.Event()

    async def wait(_claim: object, _input: object) -> Succeeded:
        await gate.wait()
        return Succeeded()

    recorder = Recorder(wait)
    for _ in range(5):
        gate.clear()
        recorder.started.clear()
        job_id = await platform.submit(4, chunk_size=2)
        await station.deliver()
        async with station.consuming(recorder) as stop:
            await recorder.started.wait()
            await eventually(lambda: _claimed(platform))
            stop.set()
            gate.set()
        assert (await platform.job(job_id)).status == "COMPLETED"
        assert waiting(stub, station) == 0


async def _claimed(platform: Platform) -> bool:
    return not await platform.rows("SELECT 1 FROM outbox WHERE state <> 'CLAIMED'")


async def test_deletes_that_are_never_answered_do_not_hold_up_the_end(
    stub: SqsStub, database: Database, database_url: str, platform: Platform
) -> None:
    """Each try would be waited for ten minutes; the messages come back and find nothing to do."""
    async with sqs_station(stub, database, database_url, aws_read_timeout_seconds=600) as station:
        stub.faults.always("DeleteMessageBatch", BlackHole())
        job_id = await platform.submit(2)
        await station.deliver()

        async def consume() -> None:
            async with station.consuming(Recorder()):
                await platform.until(job_id, "COMPLETED")

        await all_done(asyncio.create_task(consume()), timeout_seconds=60)
