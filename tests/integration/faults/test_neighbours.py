"""A large job of one owner, a consumer with few slots, and one input of another owner.

By hand with a large job that deserves the name, in entries of a hundred inputs::

    FAIRNESS_INPUTS=1000000 FAIRNESS_CHUNK=100 \\
        python -m pytest -s tests/integration/faults/test_neighbours.py
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text

from infra.database import Database
from infra.queue.protocol import Claim, ClaimedInput
from infra.wakeup import Listener
from schema.outcome import Outcome, Succeeded
from tests.deliveries import Delivery
from tests.fairness import owners
from tests.integration.faults.stations import sqs_station
from tests.platform import Recorder, eventually, settings_for
from tests.stubs.sqs import SqsStub

INPUTS = int(os.environ.get("FAIRNESS_INPUTS", "2000"))
CHUNK = int(os.environ.get("FAIRNESS_CHUNK", "1"))
SLOTS, WINDOW, ENTRIES = 2, 20, 10


@pytest.fixture(params=["outbox", "sqs"])
async def delivery(
    request: pytest.FixtureRequest, stub: SqsStub, database: Database, database_url: str
) -> AsyncIterator[Delivery]:
    changes = {
        "concurrency": SLOTS,
        "receive_entries": ENTRIES,
        "relay_window": WINDOW,
        "relay_concurrency": 1,
    }
    if request.param == "outbox":
        settings = settings_for(database_url, **changes)
        yield Delivery("outbox", settings, database, Listener(settings, name="test"))
        return
    async with sqs_station(stub, database, database_url, **changes) as delivery:
        yield delivery


async def test_a_single_input_waits_for_no_more_of_a_large_job_than_is_stated(
    delivery: Delivery, database: Database
) -> None:
    large, small = await owners(database, 2)
    turn = asyncio.Event()

    async def say(claim: Claim, input_: ClaimedInput) -> Outcome:
        await turn.wait()
        return Succeeded()

    recorder = Recorder(say, together=CHUNK)
    began = time.monotonic()
    job_id = await large.submit(INPUTS, chunk_size=CHUNK)
    submitted_seconds = time.monotonic() - began
    async with delivery.dispatching(), delivery.consuming(recorder):
        delivery.listener.wake()
        await recorder.started.wait()
        if delivery.sqs is not None:
            # The worst moment to come: the window is full.
            await eventually(lambda: _is_full(delivery))
        began = time.monotonic()
        single = await small.submit(1)
        turn.set()
        await small.until(single, "COMPLETED")
        seconds = time.monotonic() - began
        position = [job for job, _ in recorder.ran].index(single)
        await large.rows("UPDATE job SET status = 'PAUSED' WHERE id = :id RETURNING id", id=job_id)
    entries = position / CHUNK
    print(
        f"{delivery.mode}: {INPUTS} inputs submitted in {submitted_seconds:.1f} s; another owner's"
        f" one came after {entries:g} entries, in {seconds * 1000:.0f} ms"
    )
    # What the consumer had in hand, and one entry in turn; over SQS what the window held, too.
    in_hand = SLOTS + ENTRIES
    assert entries <= in_hand + 1 + (WINDOW if delivery.sqs is not None else 0)


async def _is_full(delivery: Delivery) -> bool:
    rows = await delivery.database.fetch(
        text("SELECT count(*) AS n FROM outbox WHERE state = 'SENT'")
    )
    return bool(rows[0].n >= WINDOW)
