"""Races between the relay and a consumer, over a queue that is as fast as a race needs."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from infra.database import Database
from infra.wakeup import Listener
from localstack.init.resources import Access
from tests.deliveries import Delivery, aws_environment, open_delivery
from tests.platform import Platform, eventually, settings_for
from tests.stubs.sqs import SqsStub


@pytest.fixture
async def stub() -> AsyncIterator[SqsStub]:
    async with SqsStub() as stub:
        yield stub


@pytest.fixture
async def fast_delivery(
    stub: SqsStub, database_url: str, database: Database
) -> AsyncIterator[Delivery]:
    settings = settings_for(database_url)
    with aws_environment(Access(stub.endpoint_url)):
        async with open_delivery(
            "sqs", settings, database, Listener(settings, name="test")
        ) as delivery:
            yield delivery


async def test_a_message_that_overtakes_the_relay_was_deleted_unworked(
    fast_delivery: Delivery, database_url: str, platform: Platform, stub: SqsStub
) -> None:
    """A consumer took an entry whose row the relay was just marking SENT for a settled one."""
    job_id = await platform.submit(2)
    await fast_delivery.deliver()
    (entry,) = await platform.entries(job_id)
    relay: asyncpg.Connection[Any] = await asyncpg.connect(database_url)
    async with asyncio.TaskGroup() as group:
        async with relay.transaction():
            await relay.execute("UPDATE outbox SET sent_at = now() WHERE id = $1", entry.id)
            claiming = group.create_task(
                fast_delivery.queue("w").claim(10, asyncio.Event()), name="claim"
            )

            async def waits() -> bool:
                query = "SELECT count(*) AS n FROM pg_locks WHERE NOT granted"
                return claiming.done() or bool((await platform.rows(query))[0].n)

            await eventually(waits)
    await relay.close()
    assert [claim.entry_id for claim in claiming.result()] == [entry.id]
    assert stub.calls["DeleteMessageBatch"] == 0
