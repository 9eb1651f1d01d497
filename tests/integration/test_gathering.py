"""What shares a commit, and what does not wait for that."""

import asyncio

from infra.queue.protocol import Claim, ClaimedInput
from schema.outcome import Outcome, Succeeded
from tests.deliveries import Delivery
from tests.platform import Platform, Recorder, eventually


async def test_outcomes_that_come_at_once_share_a_commit(
    delivery: Delivery, platform: Platform
) -> None:
    """One after the other in two slots, with nothing to wait for between them."""
    job_id = await platform.submit(100, chunk_size=100)
    async with delivery.dispatching(), delivery.consuming(Recorder(), concurrency=2):
        delivery.listener.wake()
        await platform.until(job_id, "COMPLETED")
    rows = await platform.rows(
        "SELECT count(DISTINCT xmin::text) AS commits FROM input WHERE job_id = :id", id=job_id
    )
    assert rows[0].commits < 10


async def test_an_outcome_waits_for_no_neighbour_that_still_runs(
    delivery: Delivery, platform: Platform
) -> None:
    job_id = await platform.submit(2, chunk_size=2)
    over = asyncio.Event()

    async def say(_: Claim, input_: ClaimedInput) -> Outcome:
        if input_.ordinal:
            await over.wait()
        return Succeeded()

    async def one_is_settled() -> bool:
        return bool((await platform.job(job_id)).succeeded == 1)

    async with delivery.dispatching(), delivery.consuming(Recorder(say), concurrency=2):
        delivery.listener.wake()
        await eventually(one_is_settled)
        over.set()
        await platform.until(job_id, "COMPLETED")
