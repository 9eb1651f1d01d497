"""Answers that are none: a page of some gateway, or JSON of another shape, are a neighbour away."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from infra.clients import Clients
from infra.database import Database
from infra.storage import Storage
from localstack.init.resources import Access
from schema.errors import Unavailable
from schema.outcome import Outcome, Succeeded
from tests.deliveries import Delivery, aws_environment
from tests.integration.faults.stations import log_lines, sqs_station, waiting
from tests.platform import Platform, Recorder, eventually, settings_for
from tests.stubs.s3_proxy import s3_proxy
from tests.stubs.sqs import Call, Page, SqsStub

HTML = "<!DOCTYPE html><title>Passerelle indisponible \N{LATIN SMALL LETTER E WITH ACUTE}</title>"
PAGE = Page(502, "text/html", HTML.encode("latin-1"))
LIST = Page(200, "application/json", b"[]")
NAMELESS = Page(200, "application/json", b'{"Successful":[{}],"Failed":[{}],"Messages":[{}]}')
UNKNOWN = Page(200, "application/json", b'{"Successful":[{"Id":"9"}],"Failed":[{"Id":"9"}]}')
MANY = 2
# What is told of it at most, and how often.
TOLD = {
    "DeleteMessageBatch": {"message.not_deleted": 0},  # the third try deletes
    "ChangeMessageVisibilityBatch": {"message.not_hidden": MANY},
    "ReceiveMessage": {"receive.away": 1},
    "SendMessageBatch": {"relay.away": 1},
}


@pytest.mark.parametrize(
    ("action", "page"),
    [
        pytest.param("DeleteMessageBatch", PAGE, id="a page for a delete"),
        pytest.param("DeleteMessageBatch", UNKNOWN, id="a delete of what nobody deleted"),
        pytest.param("ChangeMessageVisibilityBatch", PAGE, id="a page for an extension"),
        pytest.param("ChangeMessageVisibilityBatch", LIST, id="a list for an extension"),
        pytest.param("ReceiveMessage", LIST, id="a list for a receive"),
        pytest.param("ReceiveMessage", NAMELESS, id="a message without anything"),
        pytest.param("SendMessageBatch", PAGE, id="a page for a send"),
        pytest.param("SendMessageBatch", NAMELESS, id="sent is what has no name"),
    ],
)
async def test_an_answer_of_sqs_that_cannot_be_read_ends_nothing_and_is_asked_for_again(
    stub: SqsStub,
    database: Database,
    database_url: str,
    platform: Platform,
    action: str,
    page: Page,
) -> None:
    met, enough = 0, asyncio.Event()

    def meets(call: Call) -> Page | None:
        nonlocal met
        if call.action != action or met == MANY:
            return None
        met += 1
        if met == MANY:
            enough.set()
        return page

    async def say(*_: object) -> Outcome:
        if action == "ChangeMessageVisibilityBatch":
            await enough.wait()
        return Succeeded()

    async with sqs_station(
        stub, database, database_url, lease_seconds=3, relay_backoff_base_seconds=0.1
    ) as station:
        stub.faults.hook = meets
        job_id = await platform.submit(4, chunk_size=1)
        with log_lines() as lines:
            async with station.dispatching(), station.consuming(Recorder(say)):
                await platform.until(job_id, "COMPLETED", timeout_seconds=30)
                await eventually(lambda: waiting(stub, station) == 0, timeout_seconds=30)
    assert met == MANY
    told = Counter(line["event"] for line in lines if line["log_level"] in ("warning", "error"))
    assert told <= Counter(TOLD[action])
    await platform.check_all_done()


async def test_what_a_batch_without_an_answer_held_locked_is_due_again_after_its_backoff(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    await platform.submit(4, chunk_size=1)
    stub.faults.always("SendMessageBatch", PAGE)
    report = await station.relay().relay_once()
    assert (report.sent, report.put_off) == (0, 4)
    assert report.fault is not None
    assert not await platform.rows("SELECT 1 FROM outbox WHERE locked_by IS NOT NULL")


@pytest.mark.parametrize(
    "body", [HTML.encode("latin-1"), b"[]", b""], ids=["a page in Latin-1", "a list", "nothing"]
)
async def test_an_answer_of_s3_that_cannot_be_read_is_a_storage_that_is_away(
    database_url: str, body: bytes
) -> None:
    async def chunks(size_bytes: int) -> AsyncIterator[bytes]:
        yield b"x" * size_bytes

    settings = settings_for(database_url, bucket="bucket", aws_attempts=1)
    async with s3_proxy("nowhere") as proxy:
        proxy.page = lambda: web.Response(body=body, content_type="text/html")
        with aws_environment(Access(proxy.url)):
            async with Clients(settings).s3() as client:
                storage = Storage(client, settings)
                for size_bytes in (1, settings.export_part_bytes + 1):
                    with pytest.raises(Unavailable):
                        await storage.write(
                            "key", chunks(size_bytes), content_type="text/csv", metadata={}
                        )
                with pytest.raises(Unavailable):
                    await storage.head("s3://bucket/key")
