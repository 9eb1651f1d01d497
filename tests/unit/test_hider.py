"""Hiding: one thing at a time, and of what is asked for meanwhile the newest only."""

import asyncio
from collections.abc import Sequence
from typing import cast

from consumer.hider import Hider
from infra.queue.protocol import Claim, Queue
from tests.claims import claim_of


class OneByOne:
    """A queue whose extensions each wait to be let go."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.go = asyncio.Semaphore(0)
        self.began = asyncio.Semaphore(0)

    async def extend(self, claims: Sequence[Claim], lease_seconds: float) -> None:
        assert lease_seconds == 30
        self.asked.append([claim.entry_id for claim in claims])
        self.began.release()
        await self.go.acquire()


async def test_of_what_is_asked_for_while_a_call_waits_only_the_newest_is_done() -> None:
    queue = OneByOne()
    hider = Hider(cast(Queue, queue), lease_seconds=30)
    running = asyncio.create_task(hider.run())
    hider.hide([claim_of("k", entry_id=1)])
    await queue.began.acquire()
    for entry_id in (2, 3, 4):
        hider.hide([claim_of("k", entry_id=entry_id)])
    queue.go.release()
    await queue.began.acquire()
    assert queue.asked == [[1], [4]]
    running.cancel()
    await asyncio.wait([running])
