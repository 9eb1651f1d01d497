"""What AWS does and an emulator does not, and faults on request: only the SQS stub shows them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import aiohttp
import pytest
from botocore.exceptions import ClientError, HTTPClientError

from tests.platform import eventually
from tests.station import Station, code_of, opened
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
    from collections.abc import AsyncIterator


@pytest.fixture
async def stub() -> AsyncIterator[SqsStub]:
    async with SqsStub() as stub:
        yield stub


@pytest.fixture
async def faulty(stub: SqsStub) -> AsyncIterator[Station]:
    async with opened(stub.endpoint_url) as station:
        yield station


async def is_polled(stub: SqsStub, station: Station) -> bool:
    return bool(stub.queue(station.url).polls)


async def is_left_alone(stub: SqsStub, station: Station) -> bool:
    return not await is_polled(stub, station)


@pytest.mark.parametrize("wrong", [{"most": 0}, {"VisibilityTimeout": 43_201}])
async def test_numbers_that_the_emulator_lets_pass_are_refused(
    faulty: Station, wrong: dict[str, int]
) -> None:
    with pytest.raises(ClientError) as error:
        await faulty.receive(**wrong)
    assert code_of(error) == "InvalidParameterValue"


async def test_a_stale_handle_deletes_nothing(faulty: Station) -> None:
    await faulty.send("x")
    [first] = await faulty.receive(VisibilityTimeout=0)
    assert len(await faulty.receive()) == 1
    await faulty.delete(first["ReceiptHandle"])
    assert await faulty.counts() == (0, 1)


async def test_twelve_hours_count_from_the_receive(faulty: Station) -> None:
    await faulty.send("x")
    [message] = await faulty.receive()
    with pytest.raises(ClientError) as error:
        await faulty.hide(message["ReceiptHandle"], 43_200)
    assert code_of(error) == "InvalidParameterValue"
    await faulty.hide(message["ReceiptHandle"], 43_199)


async def test_visibility_of_a_message_that_is_not_in_flight(faulty: Station) -> None:
    await faulty.send("x")
    [message] = await faulty.receive(VisibilityTimeout=0)
    with pytest.raises(ClientError) as error:
        await faulty.hide(message["ReceiptHandle"], 10)
    assert code_of(error) == "AWS.SimpleQueueService.MessageNotInflight"


async def test_a_client_that_left_its_poll_takes_no_message_with_it(
    stub: SqsStub, faulty: Station
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


async def test_at_the_in_flight_limit_receives_are_empty(stub: SqsStub, faulty: Station) -> None:
    stub.queue(faulty.url).in_flight_limit = 2
    await faulty.send_many("a", "b", "c")
    assert len(await faulty.receive()) == 2
    assert not await faulty.receive(wait=1)


async def test_single_entries_fail_and_are_not_done(stub: SqsStub, faulty: Station) -> None:
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
    stub: SqsStub, faulty: Station, fault: Refuse, code: str, status: int
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
    stub: SqsStub, fault: type[BlackHole | Reset], *, done: bool
) -> None:
    async with opened(stub.endpoint_url, read_timeout=0.3) as station:
        stub.faults.next("SendMessage", fault(done=done))
        with pytest.raises(HTTPClientError):
            await station.send("x")
        assert await station.counts() == (int(done), 0)


async def test_answers_come_late(stub: SqsStub, faulty: Station) -> None:
    stub.faults.next("SendMessage", Slow(0.2))
    began = time.monotonic()
    await faulty.send("x")
    assert time.monotonic() - began >= 0.2


async def test_messages_get_lost_doubled_and_out_of_order(stub: SqsStub, faulty: Station) -> None:
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


async def test_faults_can_last_and_a_hook_can_choose(stub: SqsStub, faulty: Station) -> None:
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
