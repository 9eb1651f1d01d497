"""An SQS that takes what it is asked and never answers: the leases in Postgres go on without it."""

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
)
from tests.platform import KIND, Gated, Platform, eventually
from tests.stubs.sqs import BlackHole, SqsStub

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
                # Each waits for a third of a lease, and so does what comes before it.
                await eventually(
                    lambda: len(named(lines, "lease.message_not_hidden")) >= 4, timeout_seconds=60
                )
                stub.faults.clear()
                recorder.gate.set()
                job = await platform.until(job_id, "COMPLETED")
    assert job.succeeded == 1
    assert recorder.ran == [(job_id, 0)]
    assert not named(lines, "lease.lost")
    assert not named(lines, "reaper.repaired")
    await platform.check_consistency()


async def test_a_message_that_cannot_be_deleted_holds_up_no_claim_that_came_with_it(
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
        claims = await sqs_queue(station).claim(10, asyncio.Event())
        stub.faults.clear()
    assert len(claims) == 3
    (row,) = await platform.rows(
        "SELECT count(*) AS n FROM outbox WHERE state = 'CLAIMED' AND locked_until > now()"
    )
    assert row.n == 3
