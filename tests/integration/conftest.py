"""A platform on a database of its own, and queues of both kinds to deliver through."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext

import pytest

from infra.database import Database
from infra.wakeup import Listener
from tests.deliveries import Delivery, aws_environment, open_delivery
from tests.platform import settings_for


@pytest.fixture(params=["outbox", "sqs"])
async def delivery(
    request: pytest.FixtureRequest, database_url: str, database: Database
) -> AsyncIterator[Delivery]:
    """Delivery in both modes; every test that asks for it runs once in each."""
    settings = settings_for(database_url)
    listener = Listener(settings, name="test")
    environment = (
        nullcontext()
        if request.param == "outbox"
        else aws_environment(request.getfixturevalue("aws"))
    )
    with environment:
        async with (
            open_delivery(request.param, settings, database, listener) as delivery,
            asyncio.TaskGroup() as group,
        ):
            listening = group.create_task(listener.run())
            yield delivery
            listening.cancel()
