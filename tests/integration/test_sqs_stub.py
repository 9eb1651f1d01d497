"""The SQS stub and LocalStack, held to one set of behaviour."""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.station import Station, code_of, opened
from tests.stubs.sqs import SqsStub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(params=["stub", "localstack"])
async def station(request: pytest.FixtureRequest) -> AsyncIterator[Station]:
    """The queue of each of the two; every test runs over both."""
    if request.param == "stub":
        async with SqsStub() as stub, opened(stub.endpoint_url) as station:
            yield station
    else:
        async with opened(request.getfixturevalue("aws").endpoint_url) as station:
            yield station


async def test_a_message_comes_back_as_it_was_sent(station: Station) -> None:
    attributes = {
        "correlation_id": {"DataType": "String", "StringValue": "abc"},
        "other": {"DataType": "String", "StringValue": "é"},
    }
    sent = await station.send("ä body", MessageAttributes=attributes)
    [message] = await station.receive(
        MessageAttributeNames=["All"],
        MessageSystemAttributeNames=["ApproximateReceiveCount", "SentTimestamp"],
    )
    assert message["Body"] == "ä body"
    assert message["MessageId"] == sent["MessageId"]
    md5 = hashlib.md5("ä body".encode(), usedforsecurity=False).hexdigest()
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"] == md5
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert {n: a["StringValue"] for n, a in message["MessageAttributes"].items()} == {
        "correlation_id": "abc",
        "other": "é",
    }
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert abs(int(message["Attributes"]["SentTimestamp"]) - time.time() * 1000) < 60_000


async def test_attributes_come_only_when_asked_for(station: Station) -> None:
    attributes = {name: {"DataType": "String", "StringValue": "1"} for name in ("kept", "left")}
    await station.send("x", MessageAttributes=attributes)
    [message] = await station.receive(VisibilityTimeout=0)
    assert "MessageAttributes" not in message
    assert "Attributes" not in message
    [message] = await station.receive(MessageAttributeNames=["kept"])
    assert set(message["MessageAttributes"]) == {"kept"}


async def test_a_received_message_is_hidden_until_its_timeout(station: Station) -> None:
    await station.send("x")
    assert await station.receive(VisibilityTimeout=1)
    assert not await station.receive()
    [again] = await station.receive(wait=5, MessageSystemAttributeNames=["ApproximateReceiveCount"])
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"


async def test_visibility_can_be_extended_and_given_up(station: Station) -> None:
    await station.send("x")
    [message] = await station.receive(VisibilityTimeout=1)
    await station.hide(message["ReceiptHandle"], 20)
    await _outlast(station, seconds=1)
    assert not await station.receive()
    await station.hide(message["ReceiptHandle"], 0)
    assert len(await station.receive(wait=2)) == 1


async def test_a_deleted_message_never_returns(station: Station) -> None:
    await station.send("x")
    [message] = await station.receive(VisibilityTimeout=1)
    await station.delete(message["ReceiptHandle"])
    await _outlast(station, seconds=1)
    assert not await station.receive()
    await station.delete(message["ReceiptHandle"])


async def _outlast(station: Station, *, seconds: int) -> None:
    """Wait until the queue itself brings back what it hid later than that; nothing else comes."""
    await station.send("the clock")
    assert await station.receive(VisibilityTimeout=seconds + 1)
    [back] = await station.receive(wait=10)
    assert back["Body"] == "the clock"
    await station.delete(back["ReceiptHandle"])


async def test_each_receive_gives_another_handle(station: Station) -> None:
    await station.send("x")
    [first] = await station.receive(VisibilityTimeout=0)
    [second] = await station.receive()
    assert first["MessageId"] == second["MessageId"]
    assert first["ReceiptHandle"] != second["ReceiptHandle"]
    await station.delete(second["ReceiptHandle"])
    assert await station.counts() == (0, 0)


async def test_a_handle_from_nowhere_is_refused(station: Station) -> None:
    with pytest.raises(ClientError) as error:
        await station.delete("no-handle")
    assert code_of(error) == "ReceiptHandleIsInvalid"


async def test_a_long_poll_ends_as_soon_as_a_message_comes(station: Station) -> None:
    async with asyncio.TaskGroup() as group:
        polling = group.create_task(station.receive(wait=15))
        await asyncio.sleep(0.3)
        await station.send("x")
        began = time.monotonic()
        assert len(await polling) == 1
    assert time.monotonic() - began < 5


async def test_a_long_poll_of_an_empty_queue_ends_empty(station: Station) -> None:
    began = time.monotonic()
    assert not await station.receive(wait=1)
    assert 0.9 < time.monotonic() - began < 5


async def test_batches_say_of_each_entry_what_became_of_it(station: Station) -> None:
    answer = await station.send_many(*"abcdefghij")
    assert [taken["Id"] for taken in answer["Successful"]] == [str(n) for n in range(10)]
    messages: list[Any] = []
    for _ in range(20):
        messages += await station.receive()
        if len(messages) == 10:
            break
    assert sorted(message["Body"] for message in messages) == list("abcdefghij")
    handles = [message["ReceiptHandle"] for message in messages]
    entries: list[Any] = [{"Id": str(n), "ReceiptHandle": h} for n, h in enumerate(handles)]
    hidden = await station.client.change_message_visibility_batch(
        QueueUrl=station.url, Entries=[e | {"VisibilityTimeout": 60} for e in entries]
    )
    assert len(hidden["Successful"]) == 10
    entries[3] = {"Id": "3", "ReceiptHandle": "no-handle"}
    deleted = await station.client.delete_message_batch(QueueUrl=station.url, Entries=entries)
    assert len(deleted["Successful"]) == 9
    [failed] = deleted["Failed"]
    assert failed["Id"] == "3"
    assert failed["Code"] == "ReceiptHandleIsInvalid"
    assert await station.counts() == (0, 1)


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([], "EmptyBatchRequest"),
        (
            [{"Id": str(n), "MessageBody": "x"} for n in range(11)],
            "TooManyEntriesInBatchRequest",
        ),
        ([{"Id": "a", "MessageBody": "x"}] * 2, "BatchEntryIdsNotDistinct"),
        ([{"Id": "a b", "MessageBody": "x"}], "InvalidBatchEntryId"),
        pytest.param(
            [{"Id": str(n), "MessageBody": "x" * 400_000} for n in range(3)],
            "BatchRequestTooLong",
            # aiohttp warns of bodies that large; none of ours is.
            marks=pytest.mark.filterwarnings("ignore:Sending a large body"),
        ),
    ],
    ids=["none", "eleven", "same-id", "bad-id", "too-long"],
)
async def test_a_batch_out_of_bounds_is_refused_as_a_whole(
    station: Station, entries: list[Any], code: str
) -> None:
    with pytest.raises(ClientError) as error:
        await station.client.send_message_batch(QueueUrl=station.url, Entries=entries)
    assert code_of(error) == f"AWS.SimpleQueueService.{code}"
    assert await station.counts() == (0, 0)


async def test_bytes_count_not_characters(station: Station) -> None:
    await station.client.set_queue_attributes(
        QueueUrl=station.url, Attributes={"MaximumMessageSize": "1024"}
    )
    await station.send("é" * 512)
    with pytest.raises(ClientError) as error:
        await station.send("é" * 513)
    assert code_of(error) == "InvalidParameterValue"


async def test_characters_outside_xml_are_refused(station: Station) -> None:
    with pytest.raises(ClientError) as error:
        await station.send("a\x0bb")
    assert code_of(error) == "InvalidMessageContents"


async def test_a_delayed_message_comes_later(station: Station) -> None:
    await station.send("x", DelaySeconds=1)
    assert not await station.receive()
    assert len(await station.receive(wait=5)) == 1


async def test_counts_tell_ready_from_hidden(station: Station) -> None:
    await station.send_many("a", "b", "c")
    await station.receive(1)
    assert await station.counts() == (2, 1)


async def test_purging_leaves_nothing(station: Station) -> None:
    await station.send_many("a", "b")
    await station.client.purge_queue(QueueUrl=station.url)
    assert await station.counts() == (0, 0)


async def test_queues_are_found_by_name_and_have_an_arn(station: Station) -> None:
    name = station.url.rsplit("/", 1)[-1]
    found = await station.client.get_queue_url(QueueName=name)
    assert found["QueueUrl"] == station.url
    attributes = await station.client.get_queue_attributes(
        QueueUrl=station.url, AttributeNames=["QueueArn"]
    )
    assert attributes["Attributes"]["QueueArn"] == f"arn:aws:sqs:us-east-1:000000000000:{name}"


async def test_a_missing_queue_is_named_as_such(station: Station) -> None:
    with pytest.raises(ClientError) as error:
        await station.client.get_queue_url(QueueName="nowhere")
    assert code_of(error) == "AWS.SimpleQueueService.NonExistentQueue"
    await station.client.delete_queue(QueueUrl=station.url)
    with pytest.raises(ClientError) as error:
        await station.receive()
    assert code_of(error) == "AWS.SimpleQueueService.NonExistentQueue"


@pytest.mark.parametrize("wrong", [{"most": 11}, {"wait": 21}])
async def test_numbers_out_of_range_are_refused(station: Station, wrong: dict[str, int]) -> None:
    with pytest.raises(ClientError) as error:
        await station.receive(**wrong)
    assert code_of(error) == "InvalidParameterValue"
