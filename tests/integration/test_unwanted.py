"""What a consumer leaves to others it takes again soon after it is wanted again."""

import asyncio

import pytest

from infra.database import Database
from infra.queue.protocol import Unwanted
from infra.wakeup import Listener
from tests.deliveries import Delivery
from tests.platform import KIND, Platform, settings_for


@pytest.mark.parametrize("left", ["the kind", "the job"])
async def test_what_was_left_to_others_is_claimed_from_the_outbox_without_a_wake_up(
    database: Database, database_url: str, platform: Platform, left: str
) -> None:
    """Nobody tells a queue that a kind has room again, or that the row of a job was let go."""
    settings = settings_for(database_url, poll_floor_seconds=50)
    queue = Delivery("outbox", settings, database, Listener(settings, name="test")).queue("w")
    job_id = await platform.submit(1)
    kinds, jobs = {KIND}, {job_id}
    (jobs if left == "the kind" else kinds).clear()
    unwanted, stop = Unwanted(kinds, jobs), asyncio.Event()
    async with asyncio.timeout(25):
        assert not await queue.claim(10, stop, unwanted)
        waiting = asyncio.create_task(queue.claim(10, stop, unwanted))
        kinds.clear()
        jobs.clear()
        assert await waiting or await queue.claim(10, stop, unwanted)
