"""A consumer, a relay or a reaper dies exactly before or after a step; nothing is lost or doubled.

The one that dies has a short lease and is alone. Then a healthy consumer and dispatcher take
over, whose leases are so long that whatever is charged is charged for the kill.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from consumer.processors.protocol import Work
from consumer.processors.running import OneByOne
from infra.database import Database
from infra.settings import Settings
from infra.wakeup import Listener
from schema.outcome import Outcome
from tests.acceptance.ledger import LEDGER, Ledger, inputs, keep
from tests.acceptance.site import Site
from tests.crashing import consumer as crashing_consumer
from tests.crashing import dispatcher as crashing_dispatcher
from tests.crashing.launch import launched
from tests.deliveries import Delivery, connect_delivery
from tests.platform import settings_for

pytestmark = pytest.mark.acceptance

INPUTS, CHUNK = 6, 3
SHORT_LEASE_SECONDS = 1
# Steps that both ways of settling have, in one statement or in a transaction with files.
SETTLING = ("settle:before", "settle:after")


class Keeper:
    """The ledger's work inside this process."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def process(self, work: Work) -> Outcome:
        return await keep(self._ledger, work)


@pytest.fixture
async def delivery(
    site: Site, database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Delivery]:
    for name, value in site.fleet.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    settings = settings_for(database_url, lease_seconds=30, resend_after_seconds=31)
    if site.queue is not None:
        changes = {"consumer_mode": "sqs-consumer", "queue_url": site.queue.url}
        settings = Settings.model_validate(settings.model_dump() | changes)
    listener = Listener(settings, name="healthy")
    kinds = {LEDGER.name: LEDGER}
    async with connect_delivery(settings, database, listener, kinds=kinds) as delivery:
        yield delivery


async def dies(site: Site, main: Callable[[], int], step: str, folder: Path) -> None:
    """Run a process to its death at the step."""
    own: dict[str, Any] = {
        "CRASH_AT": step,
        "HAULAGE_LEASE_SECONDS": SHORT_LEASE_SECONDS,
        "HAULAGE_RELAY_LOCK_SECONDS": SHORT_LEASE_SECONDS,
    }
    environment = dict(site.fleet.environment) | {name: str(value) for name, value in own.items()}
    log = folder / "crashing.log"
    with launched(main, environment, log) as process:
        await asyncio.to_thread(process.join, 60)
        assert process.exitcode == -signal.SIGKILL, log.read_text()
    last = json.loads(log.read_text().splitlines()[-1])
    assert last == {"event": "probe.reached", "step": step}


@asynccontextmanager
async def healthy(site: Site, delivery: Delivery) -> AsyncIterator[None]:
    """Let a healthy consumer and dispatcher work inside the block."""
    runner = {LEDGER.name: OneByOne(LEDGER, Keeper(site.ledger))}
    async with delivery.dispatching(), delivery.consuming(runner, worker="healthy"):
        delivery.listener.wake()
        yield


async def taken_over(site: Site, delivery: Delivery, job_id: UUID) -> None:
    async with healthy(site, delivery):
        await site.completed(job_id)


@pytest.mark.parametrize(
    ("step", "files"),
    [
        ("claim:before", False),
        ("claim:after", False),
        ("claim:handed over", False),
        ("process:before", False),
        ("process:after", False),
        *((step, files) for step in SETTLING for files in (False, True)),
        ("settle:uncommitted", True),
        ("acknowledge:before", False),
        ("acknowledge:after", False),
    ],
)
async def test_a_consumer_that_dies_costs_at_most_one_attempt_and_no_work(
    site: Site, delivery: Delivery, tmp_path: Path, step: str, files: bool
) -> None:
    job_id = await site.submit(inputs(INPUTS, file=files), chunk_size=CHUNK)
    await delivery.deliver()
    await dies(site, crashing_consumer.main, step, tmp_path)
    settled = set(await site.witness.ended(job_id))
    claimed = await site.platform.rows("SELECT locked_by FROM outbox WHERE state = 'CLAIMED'")
    await site.platform.check_consistency()

    await taken_over(site, delivery, job_id)
    charges = await site.witness.charges(job_id)
    assert set(charges.values()) <= {1}
    assert not settled & set(charges), "what was settled is nobody's loss"
    assert bool(charges) == bool(claimed)
    if step == "claim:before":
        assert not charges
    runs = site.ledger.runs()
    assert {ordinal: runs[ordinal] for ordinal in settled} == dict.fromkeys(settled, 1)
    assert {ordinal for ordinal, many in runs.items() if many > 1} <= set(charges)


@pytest.mark.parametrize(
    "step", ["lock:before", "lock:after", "send:before", "send:after", "mark:before", "mark:after"]
)
@pytest.mark.parametrize("site", ["sqs"], indirect=True)
async def test_a_relay_that_dies_costs_no_attempt_and_repeats_no_work(
    site: Site, delivery: Delivery, tmp_path: Path, step: str
) -> None:
    job_id = await site.submit(inputs(INPUTS), chunk_size=CHUNK)
    await dies(site, crashing_dispatcher.main, step, tmp_path)
    await site.platform.check_consistency()
    await taken_over(site, delivery, job_id)
    assert not await site.witness.charges(job_id)
    assert site.ledger.runs() == dict.fromkeys(range(INPUTS), 1)


@pytest.mark.parametrize(
    "step",
    ["take-over:before", "take-over:after", "settle:before", "settle:uncommitted", "settle:after"],
)
async def test_a_reaper_that_dies_charges_the_lost_attempt_once(
    site: Site, delivery: Delivery, tmp_path: Path, step: str
) -> None:
    job_id = await site.submit(inputs(CHUNK), chunk_size=CHUNK)
    await delivery.deliver()
    brief = delivery.settings.model_copy(update={"lease_seconds": SHORT_LEASE_SECONDS})
    vanished = replace(delivery, settings=brief).queue("vanished")
    (claim,) = await vanished.claim(10, asyncio.Event())
    assert len(claim.inputs) == CHUNK
    await lapse(site)
    await dies(site, crashing_dispatcher.main, step, tmp_path)
    await site.platform.check_consistency()
    await lapse(site)

    await taken_over(site, delivery, job_id)
    assert await site.witness.charges(job_id) == dict.fromkeys(range(CHUNK), 1)
    assert site.ledger.runs() == dict.fromkeys(range(CHUNK), 1)


async def lapse(site: Site) -> None:
    """Let the time of every lease be over."""
    await site.platform.rows(
        "UPDATE outbox SET locked_until = now() - interval '1 second' WHERE state = 'CLAIMED'"
    )


async def test_a_message_of_a_settled_entry_is_deleted_whoever_left_it(
    site: Site, delivery: Delivery, tmp_path: Path
) -> None:
    """The consumer dies between the last commit and the deletion: no entry is left to claim."""
    job_id = await site.submit(inputs(CHUNK), chunk_size=CHUNK)
    await delivery.deliver()
    await dies(site, crashing_consumer.main, "acknowledge:before", tmp_path)
    assert (await site.platform.job(job_id)).status == "COMPLETED"

    async with healthy(site, delivery):
        await site.check(job_id)
    assert site.ledger.runs() == dict.fromkeys(range(CHUNK), 1)
