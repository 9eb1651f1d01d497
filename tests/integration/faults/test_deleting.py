"""Deleting and hiding messages: what SQS refuses, forgets or brings again changes no outcome."""

import asyncio

import pytest

from infra.database import Database
from infra.queue.protocol import Claim, Unwanted
from infra.queue.sqs import SqsQueue
from infra.settle import Settlement, settle
from schema.outcome import Backoff, Succeeded
from schema.statements.claim import release_entries, take_over_lapsed
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
from tests.platform import KIND, Platform, Recorder, eventually
from tests.stubs.sqs import Call, FailEntries, Refuse, Slow, SqsStub


async def settled(database: Database, claims: list[Claim]) -> None:
    lines = await settle(
        database,
        "w",
        [Settlement(claim, input_, Succeeded(), 1) for claim in claims for input_ in claim.inputs],
        backoffs={KIND: Backoff()},
        jitter=lambda: 0.5,
    )
    assert all(line.accepted for line in lines)


def handle_of(queue: SqsQueue, claim: Claim) -> str:
    return queue._held[claim.entry_id, claim.epoch].handle


async def given_back(database: Database, claim: Claim) -> None:
    await database.fetch(release_entries([claim.entry_id], [claim.epoch], 0.0))


async def test_what_a_batch_delete_leaves_behind_is_deleted_again(
    station: Delivery, stub: SqsStub, platform: Platform, database: Database
) -> None:
    queue = sqs_queue(station)
    await platform.submit(10, chunk_size=1)
    await station.deliver()
    claims = list(await queue.claim(10, asyncio.Event()))
    await settled(database, claims)
    stub.faults.next("DeleteMessageBatch", FailEntries((4,)), Refuse("ServiceUnavailable", 503))
    await queue.acknowledge(claims)
    assert waiting(stub, station) == 0


async def test_a_delete_that_is_refused_for_good_is_told_and_not_repeated(
    station: Delivery, stub: SqsStub, platform: Platform, database: Database
) -> None:
    """Its message comes back, and finds that there is nothing left to do."""
    queue = sqs_queue(station)
    await platform.submit(1)
    await station.deliver()
    claims = list(await queue.claim(10, asyncio.Event()))
    await settled(database, claims)
    refusal = FailEntries((0,), code="ReceiptHandleIsInvalid", sender_fault=True)
    stub.faults.always("DeleteMessageBatch", refusal)
    with log_lines() as lines:
        await queue.acknowledge(claims)
    assert [line["code"] for line in named(lines, "message.not_deleted")] == [
        "ReceiptHandleIsInvalid"
    ]
    assert stub.calls["DeleteMessageBatch"] == 1


async def test_eleven_deletes_are_two_calls_and_none_is_no_call(
    station: Delivery, stub: SqsStub, platform: Platform, database: Database
) -> None:
    queue = sqs_queue(station)
    await platform.submit(11, chunk_size=1)
    await station.deliver()
    claims: list[Claim] = []
    while len(claims) < 11:
        claims += await queue.claim(10, asyncio.Event())
    await settled(database, claims)
    await queue.acknowledge([])
    assert stub.calls["DeleteMessageBatch"] == 0
    await queue.acknowledge(claims)
    assert stub.calls["DeleteMessageBatch"] == 2
    assert waiting(stub, station) == 0


async def make_visible(station: Delivery, handle: str) -> None:
    assert station.sqs is not None
    await station.sqs.change_message_visibility(
        QueueUrl=queue_url(station), ReceiptHandle=handle, VisibilityTimeout=0
    )


async def test_a_message_that_came_again_is_deleted_by_its_newest_handle(
    station: Delivery, stub: SqsStub, platform: Platform, database: Database
) -> None:
    queue = sqs_queue(station)
    await platform.submit(1)
    await station.deliver()
    (claim,) = await queue.claim(10, asyncio.Event())
    old = handle_of(queue, claim)
    await make_visible(station, old)
    assert not await queue.claim(10, asyncio.Event())
    assert handle_of(queue, claim) != old
    await settled(database, [claim])
    await queue.acknowledge([claim])
    assert waiting(stub, station) == 0


async def test_a_receipt_that_is_looked_at_late_does_not_replace_a_newer_one(
    station: Delivery, stub: SqsStub, platform: Platform, database: Database
) -> None:
    """Two receivers see to the same message, and the one that had it first comes second."""
    queue = sqs_queue(station)
    await platform.submit(1)
    await station.deliver()
    (claim,) = await queue.claim(10, asyncio.Event())
    await platform.submit(1, kind="elsewhere")
    await station.deliver()
    show(stub, station, 1)
    # The first receiver waits for an answer about the other kind, which it sees to before.
    stub.faults.next("ChangeMessageVisibilityBatch", Slow(1))
    late = asyncio.create_task(queue.claim(10, asyncio.Event()))
    await eventually(lambda: stub.calls["ChangeMessageVisibilityBatch"] == 1)
    show(stub, station, 1)
    assert not await queue.claim(10, asyncio.Event())
    newest = handle_of(queue, claim)
    assert not late.done()
    assert not await late
    assert handle_of(queue, claim) == newest
    await settled(database, [claim])
    await queue.acknowledge([claim])
    assert list(stub.queue(queue_url(station)).messages) == [2]


@pytest.mark.parametrize(
    ("kind", "unwanted", "hidden_seconds"),
    [
        (KIND, Unwanted(kinds={KIND}), [5, 10, 20, 40, 80, 160, 320, 320]),
        ("elsewhere", Unwanted(), [30, 60, 120, 240, 320, 320, 320, 320]),
    ],
    ids=["of which there is enough here", "which is unknown here"],
)
async def test_a_message_of_a_kind_is_left_to_others_for_longer_each_time_it_comes(
    station: Delivery, stub: SqsStub, platform: Platform,
    kind: str, unwanted: Unwanted, hidden_seconds: list[int],
) -> None:  # fmt: skip
    """Else a thousand receives, at which SQS gives it up, are over within the hour."""
    queue = sqs_queue(station)
    await platform.submit(1, kind=kind)
    await station.deliver()
    asked: list[int] = []

    def note(call: Call) -> None:
        if call.action == "ChangeMessageVisibilityBatch":
            asked.extend(entry["VisibilityTimeout"] for entry in call.parameters["Entries"])

    stub.faults.hook = note
    for _ in hidden_seconds:
        assert not await queue.claim(10, asyncio.Event(), unwanted)
        show(stub, station, 1)
    assert asked == hidden_seconds


async def test_a_delete_with_an_old_handle_removes_nothing_and_the_redelivery_does_nothing(
    station: Delivery, stub: SqsStub, platform: Platform, database: Database
) -> None:
    slow, other = sqs_queue(station, "slow"), sqs_queue(station, "other")
    job_id = await platform.submit(1)
    await station.deliver()
    (claim,) = await slow.claim(10, asyncio.Event())
    await make_visible(station, handle_of(slow, claim))
    assert station.sqs is not None
    again = await station.sqs.receive_message(QueueUrl=queue_url(station))
    await settled(database, [claim])
    await slow.acknowledge([claim])
    assert waiting(stub, station) == 1
    await make_visible(station, again["Messages"][0]["ReceiptHandle"])
    assert not await other.claim(10, asyncio.Event())
    assert waiting(stub, station) == 0
    assert (await platform.job(job_id)).succeeded == 1


async def test_forgetting_a_claim_that_was_given_back_leaves_the_next_claim_its_message(
    station: Delivery, stub: SqsStub, platform: Platform, database: Database
) -> None:
    """The delete of the first may wait for others, while its entry is sent and claimed again."""
    queue = sqs_queue(station)
    await platform.submit(1)
    await station.deliver()
    (first,) = await queue.claim(10, asyncio.Event())
    await given_back(database, first)
    await station.deliver()
    (second,) = await queue.claim(10, asyncio.Event())
    await queue.acknowledge([first])
    assert waiting(stub, station) == 1
    await settled(database, [second])
    await queue.acknowledge([second])
    assert waiting(stub, station) == 0


async def test_a_message_of_another_consumers_claim_is_not_taken_for_that_of_ones_earlier_claim(
    station: Delivery, stub: SqsStub, platform: Platform, database: Database
) -> None:
    queue, other = sqs_queue(station), sqs_queue(station, "other")
    await platform.submit(1)
    await station.deliver()
    (first,) = await queue.claim(10, asyncio.Event())
    await given_back(database, first)
    await station.deliver()
    (second,) = await other.claim(10, asyncio.Event())
    await make_visible(station, handle_of(other, second))
    assert not await queue.claim(10, asyncio.Event())
    await queue.acknowledge([first])
    # The second message is left, for whoever carries the second claim.
    assert list(stub.queue(queue_url(station)).messages) == [2]


async def test_a_refused_delete_does_not_end_the_consumer(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    refusal = FailEntries((0,), code="InvalidParameterValue", sender_fault=True)
    stub.faults.next("DeleteMessageBatch", refusal, Refuse("ReceiptHandleIsInvalid", 400))
    async with station.dispatching(), station.consuming(Recorder()):
        for _ in range(3):
            job_id = await platform.submit(1)
            station.listener.wake()
            await platform.until(job_id, "COMPLETED")


async def test_a_message_is_never_hidden_past_twelve_hours_from_its_receipt(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    """The stub refuses what SQS refuses: a total of more than 43,200 seconds."""
    queue = sqs_queue(station)
    await platform.submit(1)
    await station.deliver()
    claims = await queue.claim(10, asyncio.Event())
    calls: list[Call] = []
    stub.faults.hook = calls.append
    with log_lines() as lines:
        await queue.extend(claims, 43_200)
    assert not named(lines, "message.not_hidden")
    (asked,) = [
        entry["VisibilityTimeout"] for call in calls for entry in call.parameters["Entries"]
    ]
    assert 43_000 < asked < 43_200


async def test_a_message_of_what_is_being_repaired_comes_again_soon(
    stub: SqsStub, database: Database, database_url: str, platform: Platform
) -> None:
    """It is of no use afterwards, and was hidden for as long as the reaper may take at most."""
    lapse = "UPDATE outbox SET locked_until = now() - interval '1 second'"
    async with sqs_station(stub, database, database_url) as station:
        job_id = await platform.submit(1)
        await station.deliver()
        assert await sqs_queue(station, "lost").claim(10, asyncio.Event())
        await platform.rows(lapse)
        assert await database.fetch(take_over_lapsed(60, most=10))
        show(stub, station, 1)
        assert not await sqs_queue(station, "other").claim(10, asyncio.Event())
        await eventually(lambda: stub.queue(queue_url(station)).counts()[0] == 1, timeout_seconds=9)
        # Who repaired it is lost as well.
        await platform.rows(lapse)
        async with station.dispatching(), station.consuming(Recorder()):
            await platform.until(job_id, "COMPLETED")
    await platform.check_consistency()


async def test_extending_a_message_that_is_gone_harms_nobody(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    queue = sqs_queue(station)
    await platform.submit(3, chunk_size=1)
    await station.deliver()
    claims = await queue.claim(10, asyncio.Event())
    assert station.sqs is not None
    gone = handle_of(queue, claims[0])
    await station.sqs.delete_message(QueueUrl=queue_url(station), ReceiptHandle=gone)
    with log_lines() as lines:
        await queue.extend(claims, 30)
    assert len(named(lines, "message.not_hidden")) == 1


async def test_messages_that_wait_for_a_slot_stay_hidden_and_run_once(
    stub: SqsStub, database: Database, database_url: str, platform: Platform
) -> None:
    """Ten in hand, one slot, and the first takes more than two visibility timeouts."""
    calls: list[Call] = []

    async def outlast(_claim: object, input_: object) -> Succeeded:
        await eventually(lambda: _old(platform))
        return Succeeded()

    recorder = Recorder(outlast)
    async with sqs_station(
        stub, database, database_url, lease_seconds=2, prefetch_inputs=10, concurrency=1
    ) as station:
        job_id = await platform.submit(10, chunk_size=1)
        await station.deliver()
        stub.faults.hook = calls.append
        async with station.dispatching(), station.consuming(recorder):
            await platform.until(job_id, "COMPLETED")
    assert sorted(ordinal for _, ordinal in recorder.ran) == list(range(10))
    assert not await platform.rows("SELECT * FROM attempt")
    hidden = {c.parameters["VisibilityTimeout"] for c in calls if c.action == "ReceiveMessage"}
    assert hidden == {2}


async def _old(platform: Platform) -> bool:
    return bool(
        await platform.rows("SELECT 1 FROM job WHERE started_at < now() - interval '4.5 seconds'")
    )


async def test_messages_are_deleted_by_tens_and_the_rest_soon_after(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    job_id = await platform.submit(25, chunk_size=1)
    async with station.dispatching(), station.consuming(Recorder(), concurrency=25):
        station.listener.wake()
        await platform.until(job_id, "COMPLETED")
        await eventually(lambda: waiting(stub, station) == 0)
    assert stub.calls["DeleteMessageBatch"] < 25
