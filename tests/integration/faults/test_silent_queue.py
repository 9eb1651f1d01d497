"""An SQS that answers late or never: leases, claims and its own other calls go on without it."""

import asyncio

from infra.database import Database
from schema.ids import uuid7
from schema.message import Message, Trace
from tests.integration.faults.stations import (
    log_lines,
    named,
    queue_url,
    sqs_queue,
    sqs_station,
    waiting,
)
from tests.platform import KIND, Gated, Platform, Recorder, eventually
from tests.stubs.sqs import BlackHole, Call, SqsStub

LEASE_SECONDS = 3.0


async def test_a_message_that_cannot_be_hidden_costs_its_input_no_lease(
    database: Database, database_url: str, stub: SqsStub, platform: Platform
) -> None:
    recorder = Gated()
    job_id = await platform.submit(1)
    async with sqs_station(
        stub, database, database_url, lease_seconds=LEASE_SECONDS, aws_read_timeout_seconds=30
    ) as station:
        await station.deliver()
        with log_lines() as lines:
            async with station.consuming(recorder), station.dispatching():
                await recorder.started.wait()
                stub.faults.always("ChangeMessageVisibilityBatch", BlackHole())
                # Each waits for a third of a lease.
                await eventually(
                    lambda: len(named(lines, "message.not_hidden")) >= 4, timeout_seconds=60
                )
                stub.faults.clear()
                recorder.gate.set()
                job = await platform.until(job_id, "COMPLETED")
    assert job.succeeded == 1
    assert recorder.ran == [(job_id, 0)]
    assert not named(lines, "lease.lost")
    assert not named(lines, "reaper.repaired")
    await platform.check_consistency()


async def test_what_is_claimed_is_handed_over_before_what_came_beside_it_is_deleted(
    database: Database, database_url: str, stub: SqsStub, platform: Platform
) -> None:
    await platform.submit(3, chunk_size=1)
    async with sqs_station(
        stub, database, database_url, lease_seconds=LEASE_SECONDS, aws_read_timeout_seconds=30
    ) as station:
        await station.deliver()
        assert station.sqs is not None
        gone = Message(10**9, uuid7(), KIND, Trace("gone"))
        await station.sqs.send_message(
            QueueUrl=queue_url(station),
            MessageBody=gone.body(),
            MessageAttributes={
                name: {"DataType": "String", "StringValue": value}
                for name, value in gone.trace.attributes().items()
            },
        )
        stub.faults.always("DeleteMessageBatch", BlackHole())
        queue = sqs_queue(station)
        claims = await queue.claim(10, asyncio.Event())
        assert stub.calls["DeleteMessageBatch"] == 0
        stub.faults.clear()
        assert waiting(stub, station) == 4
        assert not await queue.claim_rest(asyncio.Event())
        assert waiting(stub, station) == 3
    assert len(claims) == 3
    (row,) = await platform.rows(
        "SELECT count(*) AS n FROM outbox WHERE state = 'CLAIMED' AND locked_until > now()"
    )
    assert row.n == 3


class NeverTheFirst:
    """Lets the first call of an action wait for ever, and its repetitions, and no other."""

    def __init__(self, action: str) -> None:
        self.handles: set[str] = set()
        self._action = action

    def __call__(self, call: Call) -> BlackHole | None:
        if call.action != self._action:
            return None
        handles = {entry["ReceiptHandle"] for entry in call.parameters["Entries"]}
        self.handles = self.handles or handles
        return BlackHole() if handles == self.handles else None


async def test_a_delete_without_an_answer_holds_up_no_other(
    database: Database, database_url: str, stub: SqsStub, platform: Platform
) -> None:
    job_id = await platform.submit(50, chunk_size=1)
    first = NeverTheFirst("DeleteMessageBatch")
    async with sqs_station(
        stub, database, database_url, aws_read_timeout_seconds=2, aws_attempts=3
    ) as station:
        await station.deliver()
        stub.faults.hook = first
        async with station.consuming(Recorder()):
            await platform.until(job_id, "COMPLETED")
            await eventually(lambda: waiting(stub, station) == len(first.handles))
            stub.faults.clear()
            await eventually(lambda: waiting(stub, station) == 0)


async def test_an_extension_without_an_answer_holds_up_no_other(
    database: Database, database_url: str, stub: SqsStub, platform: Platform
) -> None:
    await platform.submit(30, chunk_size=1)
    first = NeverTheFirst("ChangeMessageVisibilityBatch")
    async with sqs_station(stub, database, database_url, lease_seconds=LEASE_SECONDS) as station:
        await station.deliver()
        queue = sqs_queue(station)
        claims = [claim for _ in range(3) for claim in await queue.claim(10, asyncio.Event())]
        assert len(claims) == 30
        stub.faults.hook = first
        with log_lines() as lines:
            extending = asyncio.create_task(queue.extend(claims, LEASE_SECONDS))
            await eventually(lambda: stub.calls["ChangeMessageVisibilityBatch"] == 3)
            assert not extending.done()
            await extending
    (told,) = named(lines, "message.not_hidden")
    assert (told["messages"], told["error"]) == (10, "no answer in time")


async def test_messages_of_what_others_run_are_hidden_in_one_call(
    database: Database, database_url: str, stub: SqsStub, platform: Platform
) -> None:
    await platform.submit(5, chunk_size=1)
    async with sqs_station(stub, database, database_url) as station:
        await station.deliver()
        other = sqs_queue(station, "other")
        claims = await other.claim(10, asyncio.Event())
        assert len(claims) == 5
        await other.extend(claims, 0)
        assert not await sqs_queue(station).claim(10, asyncio.Event())
        assert stub.calls["ChangeMessageVisibilityBatch"] == 2
        assert waiting(stub, station) == 5
