"""Messages that are not ours: each is parked with its reason, and none stops a consumer."""

import json
from typing import Any

import pytest

from tests.deliveries import Delivery
from tests.integration.faults.stations import queue_url, waiting
from tests.platform import Platform, Recorder, eventually
from tests.stubs.sqs import SqsStub
from tests.stubs.sqs.queue import Message

OURS = {"v": 1, "entry": 1, "job": "0198c0de-0000-7000-8000-000000000000", "kind": "probe"}
FOREIGN = {
    "not JSON": ("hello", "not JSON"),
    "null": ("null", "NoneType"),
    "a list": ("[]", "list"),
    "a number": ("1e400", "float"),
    "brackets without end": ("[" * 100_000, "not JSON"),
    "an SNS envelope": ('{"Type":"Notification","Message":"{}"}', "version field"),
    "an S3 test event": ('{"Service":"Amazon S3","Event":"s3:TestEvent"}', "version field"),
    "a later version": (json.dumps(OURS | {"v": 2}), "version 2"),
    "a version with a NUL": ('{"v":"\\u0000"}', "version"),
    "a version with half a pair": ('{"v":"\\ud800"}', "version"),
    "an entry out of range": (json.dumps(OURS | {"entry": 2**63}), "entry"),
    "an entry that is true": (json.dumps(OURS | {"entry": True}), "entry"),
    "a job that is no UUID": (json.dumps(OURS | {"job": 7}), "job"),
    "a kind that is a list": (json.dumps(OURS | {"kind": []}), "kind"),
}


async def parked(platform: Platform) -> bool:
    return bool(await platform.rows("SELECT 1 FROM parked_message"))


async def test_a_foreign_message_is_parked_with_its_reason_and_the_next_job_runs(
    station: Delivery, stub: SqsStub, platform: Platform, subtests: pytest.Subtests
) -> None:
    assert station.sqs is not None
    async with station.dispatching(), station.consuming(Recorder()):
        for name, (body, reason) in FOREIGN.items():
            with subtests.test(name):
                await station.sqs.send_message(QueueUrl=queue_url(station), MessageBody=body)
                await eventually(lambda: parked(platform))
                (row,) = await platform.rows("DELETE FROM parked_message RETURNING reason, body")
                assert reason in row.reason
                assert row.body == body
        job_id = await platform.submit(1)
        station.listener.wake()
        await platform.until(job_id, "COMPLETED")
    assert waiting(stub, station) == 0


async def test_what_postgres_cannot_store_is_parked_in_the_nearest_text_that_it_can(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    """SQS would not take these characters; other brokers that speak its protocol do."""
    attributes: dict[str, Any] = {"a": {"DataType": "String", "StringValue": "x\x00\ud800"}}
    stub.queue(queue_url(station)).put(
        Message("odd", "a\x00b", "0" * 32, attributes, "0" * 32, None), 0
    )
    async with station.consuming(Recorder()):
        await eventually(lambda: parked(platform))
    (row,) = await platform.rows("SELECT body, attributes FROM parked_message")
    assert row.body == "a�b"
    assert row.attributes == {"a": "x��"}


async def test_a_message_of_ours_for_an_entry_that_does_not_exist_is_deleted(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    assert station.sqs is not None
    await station.sqs.send_message(QueueUrl=queue_url(station), MessageBody=json.dumps(OURS))
    async with station.consuming(Recorder()):
        await eventually(lambda: _gone(stub, station))
    assert not await platform.rows("SELECT 1 FROM parked_message")


async def _gone(stub: SqsStub, station: Delivery) -> bool:
    return waiting(stub, station) == 0
