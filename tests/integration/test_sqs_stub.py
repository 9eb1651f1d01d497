"""The SQS stub and LocalStack, held to one set of behaviour; and what only the stub can show."""

from __future__ import annotations

import asyncio
import hashlib
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import aiohttp
import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import ClientError, HTTPClientError

from tests.platform import eventually
from tests.stubs.sqs import (
    BlackHole,
    DropMessages,
    DuplicateMessages,
    EmptyReceive,
    FailEntries,
    Refuse,
    ReorderMessages,
    Reset,
    Slow,
    SqsStub,
)
from tests.stubs.sqs.faults import ACCESS_DENIED, THROTTLED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from types_aiobotocore_sqs import SQSClient

# An emulator's timers may tick once a second.
TICK_SECONDS = 1.2


class Station:
    """A client and a queue of its own."""

    def __init__(self, client: SQSClient, url: str) -> None:
        self.client = client
        self.url = url

    async def send(self, body: str, **more: object) -> Mapping[str, Any]:
        call: Any = self.client.send_message
        answer: Mapping[str, Any] = await call(QueueUrl=self.url, MessageBody=body, **more)
        return answer

    async def send_many(self, *bodies: str) -> Mapping[str, Any]:
        entries: list[Any] = [
            {"Id": str(index), "MessageBody": body} for index, body in enumerate(bodies)
        ]
        return await self.client.send_message_batch(QueueUrl=self.url, Entries=entries)

    async def receive(self, most: int = 10, wait: int = 0, **more: object) -> list[Any]:
        call: Any = self.client.receive_message
        answer = await call(
            QueueUrl=self.url, MaxNumberOfMessages=most, WaitTimeSeconds=wait, **more
        )
        return list(answer.get("Messages", ()))

    async def delete(self, handle: str) -> None:
        await self.client.delete_message(QueueUrl=self.url, ReceiptHandle=handle)

    async def hide(self, handle: str, seconds: int) -> None:
        await self.client.change_message_visibility(
            QueueUrl=self.url, ReceiptHandle=handle, VisibilityTimeout=seconds
        )

    async def counts(self) -> tuple[int, int]:
        names: Any = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = await self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        ready, hidden = (int(answer["Attributes"][name]) for name in names)
        return ready, hidden


@asynccontextmanager
async def opened(endpoint_url: str, *, read_timeout: float = 30) -> AsyncIterator[Station]:
    session = get_session()
    config = AioConfig(
        retries={"total_max_attempts": 1, "mode": "standard"},
        read_timeout=read_timeout,
        parameter_validation=False,
    )
    async with session.create_client(
        "sqs",
        endpoint_url=endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=config,
    ) as client:
        answer = await client.create_queue(QueueName=f"check-{uuid4().hex}")
        yield Station(client, answer["QueueUrl"])


@pytest.fixture
async def stub() -> AsyncIterator[SqsStub]:
    async with SqsStub() as stub:
        yield stub


@pytest.fixture
async def faulty(stub: SqsStub) -> AsyncIterator[Station]:
    async with opened(stub.endpoint_url) as station:
        yield station


@pytest.fixture(params=["stub", "localstack"])
async def station(request: pytest.FixtureRequest) -> AsyncIterator[Station]:
    """The queue of each of the two; every test that asks for it runs over both."""
    if request.param == "stub":
        async with SqsStub() as stub, opened(stub.endpoint_url) as station:
            yield station
    else:
        async with opened(request.getfixturevalue("aws").endpoint_url) as station:
            yield station


def code_of(error: pytest.ExceptionInfo[ClientError]) -> str:
    return error.value.response["Error"]["Code"]


async def is_polled(stub: SqsStub, station: Station) -> bool:
    return bool(stub.queue(station.url).polls)


async def is_left_alone(stub: SqsStub, station: Station) -> bool:
    return not await is_polled(stub, station)


class TestOverBoth:
    async def test_a_message_comes_back_as_it_was_sent(self, station: Station) -> None:
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

    async def test_attributes_come_only_when_asked_for(self, station: Station) -> None:
        attributes = {name: {"DataType": "String", "StringValue": "1"} for name in ("kept", "left")}
        await station.send("x", MessageAttributes=attributes)
        [message] = await station.receive(VisibilityTimeout=0)
        assert "MessageAttributes" not in message
        assert "Attributes" not in message
        [message] = await station.receive(MessageAttributeNames=["kept"])
        assert set(message["MessageAttributes"]) == {"kept"}

    async def test_a_received_message_is_hidden_until_its_timeout(self, station: Station) -> None:
        await station.send("x")
        assert await station.receive(VisibilityTimeout=1)
        assert not await station.receive()
        [again] = await station.receive(
            wait=5, MessageSystemAttributeNames=["ApproximateReceiveCount"]
        )
        assert again["Attributes"]["ApproximateReceiveCount"] == "2"

    async def test_visibility_can_be_extended_and_given_up(self, station: Station) -> None:
        await station.send("x")
        [message] = await station.receive(VisibilityTimeout=1)
        await station.hide(message["ReceiptHandle"], 20)
        await asyncio.sleep(1 + TICK_SECONDS)
        assert not await station.receive()
        await station.hide(message["ReceiptHandle"], 0)
        assert len(await station.receive(wait=2)) == 1

    async def test_a_deleted_message_never_returns(self, station: Station) -> None:
        await station.send("x")
        [message] = await station.receive(VisibilityTimeout=1)
        await station.delete(message["ReceiptHandle"])
        await asyncio.sleep(1 + TICK_SECONDS)
        assert not await station.receive()
        await station.delete(message["ReceiptHandle"])

    async def test_each_receive_gives_another_handle(self, station: Station) -> None:
        await station.send("x")
        [first] = await station.receive(VisibilityTimeout=0)
        [second] = await station.receive()
        assert first["MessageId"] == second["MessageId"]
        assert first["ReceiptHandle"] != second["ReceiptHandle"]
        await station.delete(second["ReceiptHandle"])
        assert await station.counts() == (0, 0)

    async def test_a_handle_from_nowhere_is_refused(self, station: Station) -> None:
        with pytest.raises(ClientError) as error:
            await station.delete("no-handle")
        assert code_of(error) == "ReceiptHandleIsInvalid"

    async def test_a_long_poll_ends_as_soon_as_a_message_comes(self, station: Station) -> None:
        async with asyncio.TaskGroup() as group:
            polling = group.create_task(station.receive(wait=15))
            await asyncio.sleep(0.3)
            await station.send("x")
            began = time.monotonic()
            assert len(await polling) == 1
        assert time.monotonic() - began < 5

    async def test_a_long_poll_of_an_empty_queue_ends_empty(self, station: Station) -> None:
        began = time.monotonic()
        assert not await station.receive(wait=1)
        assert 0.9 < time.monotonic() - began < 5

    async def test_batches_say_of_each_entry_what_became_of_it(self, station: Station) -> None:
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
        self, station: Station, entries: list[Any], code: str
    ) -> None:
        with pytest.raises(ClientError) as error:
            await station.client.send_message_batch(QueueUrl=station.url, Entries=entries)
        assert code_of(error) == f"AWS.SimpleQueueService.{code}"
        assert await station.counts() == (0, 0)

    async def test_bytes_count_not_characters(self, station: Station) -> None:
        await station.client.set_queue_attributes(
            QueueUrl=station.url, Attributes={"MaximumMessageSize": "1024"}
        )
        await station.send("é" * 512)
        with pytest.raises(ClientError) as error:
            await station.send("é" * 513)
        assert code_of(error) == "InvalidParameterValue"

    async def test_characters_outside_xml_are_refused(self, station: Station) -> None:
        with pytest.raises(ClientError) as error:
            await station.send("a\x0bb")
        assert code_of(error) == "InvalidMessageContents"

    async def test_a_delayed_message_comes_later(self, station: Station) -> None:
        await station.send("x", DelaySeconds=1)
        assert not await station.receive()
        assert len(await station.receive(wait=5)) == 1

    async def test_counts_tell_ready_from_hidden(self, station: Station) -> None:
        await station.send_many("a", "b", "c")
        await station.receive(1)
        assert await station.counts() == (2, 1)

    async def test_purging_leaves_nothing(self, station: Station) -> None:
        await station.send_many("a", "b")
        await station.client.purge_queue(QueueUrl=station.url)
        assert await station.counts() == (0, 0)

    async def test_queues_are_found_by_name_and_have_an_arn(self, station: Station) -> None:
        name = station.url.rsplit("/", 1)[-1]
        found = await station.client.get_queue_url(QueueName=name)
        assert found["QueueUrl"] == station.url
        attributes = await station.client.get_queue_attributes(
            QueueUrl=station.url, AttributeNames=["QueueArn"]
        )
        assert attributes["Attributes"]["QueueArn"] == f"arn:aws:sqs:us-east-1:000000000000:{name}"

    async def test_a_missing_queue_is_named_as_such(self, station: Station) -> None:
        with pytest.raises(ClientError) as error:
            await station.client.get_queue_url(QueueName="nowhere")
        assert code_of(error) == "AWS.SimpleQueueService.NonExistentQueue"
        await station.client.delete_queue(QueueUrl=station.url)
        with pytest.raises(ClientError) as error:
            await station.receive()
        assert code_of(error) == "AWS.SimpleQueueService.NonExistentQueue"

    @pytest.mark.parametrize("wrong", [{"most": 11}, {"wait": 21}])
    async def test_numbers_out_of_range_are_refused(
        self, station: Station, wrong: dict[str, int]
    ) -> None:
        with pytest.raises(ClientError) as error:
            await station.receive(**wrong)
        assert code_of(error) == "InvalidParameterValue"


class TestWhatOnlyTheStubShows:
    @pytest.mark.parametrize("wrong", [{"most": 0}, {"VisibilityTimeout": 43_201}])
    async def test_numbers_that_the_emulator_lets_pass_are_refused(
        self, faulty: Station, wrong: dict[str, int]
    ) -> None:
        with pytest.raises(ClientError) as error:
            await faulty.receive(**wrong)
        assert code_of(error) == "InvalidParameterValue"

    async def test_a_stale_handle_deletes_nothing(self, faulty: Station) -> None:
        await faulty.send("x")
        [first] = await faulty.receive(VisibilityTimeout=0)
        assert len(await faulty.receive()) == 1
        await faulty.delete(first["ReceiptHandle"])
        assert await faulty.counts() == (0, 1)

    async def test_twelve_hours_count_from_the_receive(self, faulty: Station) -> None:
        await faulty.send("x")
        [message] = await faulty.receive()
        with pytest.raises(ClientError) as error:
            await faulty.hide(message["ReceiptHandle"], 43_200)
        assert code_of(error) == "InvalidParameterValue"
        await faulty.hide(message["ReceiptHandle"], 43_199)

    async def test_visibility_of_a_message_that_is_not_in_flight(self, faulty: Station) -> None:
        await faulty.send("x")
        [message] = await faulty.receive(VisibilityTimeout=0)
        with pytest.raises(ClientError) as error:
            await faulty.hide(message["ReceiptHandle"], 10)
        assert code_of(error) == "AWS.SimpleQueueService.MessageNotInflight"

    async def test_a_client_that_left_its_poll_takes_no_message_with_it(
        self, stub: SqsStub, faulty: Station
    ) -> None:
        async with aiohttp.ClientSession() as session:
            polling = asyncio.create_task(
                session.post(
                    stub.endpoint_url,
                    headers={"X-Amz-Target": "AmazonSQS.ReceiveMessage"},
                    json={"QueueUrl": faulty.url, "WaitTimeSeconds": 20},
                )
            )
            await eventually(lambda: is_polled(stub, faulty))
            polling.cancel()
        await eventually(lambda: is_left_alone(stub, faulty))
        await faulty.send("x")
        assert await faulty.counts() == (1, 0)

    async def test_at_the_in_flight_limit_receives_are_empty(
        self, stub: SqsStub, faulty: Station
    ) -> None:
        stub.queue(faulty.url).in_flight_limit = 2
        await faulty.send_many("a", "b", "c")
        assert len(await faulty.receive()) == 2
        assert not await faulty.receive(wait=1)

    async def test_single_entries_fail_and_are_not_done(
        self, stub: SqsStub, faulty: Station
    ) -> None:
        stub.faults.next("SendMessageBatch", FailEntries((1,)), None)
        answer = await faulty.send_many("a", "b", "c")
        assert [taken["Id"] for taken in answer["Successful"]] == ["0", "2"]
        [failed] = answer["Failed"]
        assert (failed["Id"], failed["Code"], failed["SenderFault"]) == (
            "1",
            "InternalError",
            False,
        )
        assert await faulty.counts() == (2, 0)
        assert "Failed" not in await faulty.send_many("d")

    @pytest.mark.parametrize(
        ("fault", "code", "status"),
        [
            (Refuse(), "InternalError", 500),
            (Refuse("ServiceUnavailable", 503), "ServiceUnavailable", 503),
            (THROTTLED, "RequestThrottled", 400),
            (ACCESS_DENIED, "AccessDenied", 403),
        ],
        ids=["internal", "unavailable", "throttled", "denied"],
    )
    async def test_whole_calls_fail(
        self, stub: SqsStub, faulty: Station, fault: Refuse, code: str, status: int
    ) -> None:
        stub.faults.next("SendMessage", fault)
        with pytest.raises(ClientError) as error:
            await faulty.send("x")
        assert code_of(error) == code
        assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
        assert await faulty.counts() == (0, 0)

    @pytest.mark.parametrize("done", [False, True])
    @pytest.mark.parametrize("fault", [BlackHole, Reset])
    async def test_no_answer_whether_the_call_was_done_or_not(
        self, stub: SqsStub, fault: type[BlackHole | Reset], *, done: bool
    ) -> None:
        async with opened(stub.endpoint_url, read_timeout=0.3) as station:
            stub.faults.next("SendMessage", fault(done=done))
            with pytest.raises(HTTPClientError):
                await station.send("x")
            assert await station.counts() == (int(done), 0)

    async def test_answers_come_late(self, stub: SqsStub, faulty: Station) -> None:
        stub.faults.next("SendMessage", Slow(0.2))
        began = time.monotonic()
        await faulty.send("x")
        assert time.monotonic() - began >= 0.2

    async def test_messages_get_lost_doubled_and_out_of_order(
        self, stub: SqsStub, faulty: Station
    ) -> None:
        stub.faults.next("SendMessageBatch", DropMessages(), DuplicateMessages())
        await faulty.send_many("lost")
        assert await faulty.counts() == (0, 0)
        await faulty.send_many("twice")
        first, second = await faulty.receive()
        assert first["MessageId"] == second["MessageId"]
        assert first["ReceiptHandle"] != second["ReceiptHandle"]
        stub.faults.next("SendMessage", None, None, ReorderMessages())
        for body in "abc":
            await faulty.send(body)
        assert [message["Body"] for message in await faulty.receive()] == ["c", "b", "a"]

    async def test_faults_can_last_and_a_hook_can_choose(
        self, stub: SqsStub, faulty: Station
    ) -> None:
        await faulty.send("x")
        stub.faults.always("ReceiveMessage", EmptyReceive())
        assert not await faulty.receive()
        assert not await faulty.receive()
        stub.faults.clear()
        stub.faults.hook = lambda call: Refuse() if call.action == "ReceiveMessage" else None
        with pytest.raises(ClientError):
            await faulty.receive()
        stub.faults.clear()
        assert len(await faulty.receive()) == 1
        assert stub.calls["ReceiveMessage"] == 4
