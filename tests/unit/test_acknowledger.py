"""Acknowledging: by tens, several calls at once, and no more in hand than a bound."""

import asyncio
from collections.abc import Sequence
from typing import cast

from consumer.acknowledger import Acknowledger
from infra.queue.protocol import Claim, Queue
from tests.claims import claim_of
from tests.integration.faults.stations import log_lines, named
from tests.platform import eventually


class Unanswering:
    """A queue whose acknowledgements each wait for an answer."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.abandoned: list[int] = []
        self.answer = asyncio.Event()

    async def acknowledge(self, claims: Sequence[Claim]) -> None:
        assert not any(claim.inputs for claim in claims), "what waits holds no bodies"
        self.asked.append([claim.entry_id for claim in claims])
        await self.answer.wait()

    def abandon(self, claim: Claim) -> None:
        self.abandoned.append(claim.entry_id)


async def test_calls_that_wait_hold_up_others_only_at_the_bound_and_nothing_is_left_behind() -> (
    None
):
    queue = Unanswering()
    acknowledger = Acknowledger(cast(Queue, queue), calls_at_once=3)
    running = asyncio.create_task(acknowledger.run())
    for entry_id in range(45):
        acknowledger.add(claim_of("k", "body", entry_id=entry_id))
    await eventually(lambda: len(queue.asked) == 3)
    acknowledger.close()
    assert [len(call) for call in queue.asked] == [10, 10, 10]
    queue.answer.set()
    await running
    assert [entry_id for call in queue.asked for entry_id in call] == list(range(45))


async def test_a_queue_that_answers_nothing_piles_up_no_claims_without_end() -> None:
    queue = Unanswering()
    acknowledger = Acknowledger(cast(Queue, queue), calls_at_once=1)
    claim = claim_of("k", "body")
    with log_lines() as lines:
        for _ in range(10_003):
            acknowledger.add(claim)
    assert len(queue.abandoned) == 3
    assert len(named(lines, "message.not_deleted")) == 1, "told once"
