"""A consumer that is told to stop, killed or held up in the middle of its work."""

import asyncio
import signal
from uuid import UUID

import pytest

from tests.acceptance.fleet import PATIENCE_SECONDS, Member
from tests.acceptance.ledger import inputs
from tests.acceptance.site import Site
from tests.platform import eventually

pytestmark = pytest.mark.acceptance

INPUTS, CHUNK, SLOTS = 30, 10, 3


async def busy(site: Site, **settings: object) -> tuple[UUID, Member]:
    """Start a consumer and hold it in the middle of its first inputs."""
    dispatcher = site.fleet.start("dispatcher")
    consumer = site.fleet.start("consumer", HAULAGE_CONCURRENCY=SLOTS, **settings)
    await site.fleet.ready(dispatcher, consumer)
    job_id = await site.submit(inputs(INPUTS, gated=True), chunk_size=CHUNK)

    async def slots_are_full() -> bool:
        return len(site.ledger.marks("began")) == SLOTS

    await eventually(slots_are_full, timeout_seconds=PATIENCE_SECONDS)
    return job_id, consumer


async def nothing_is_held(site: Site, job_id: UUID) -> None:
    held = await site.platform.rows("SELECT id FROM outbox WHERE state = 'CLAIMED'")
    assert not held
    assert not await site.witness.charges(job_id)
    await site.platform.check_consistency()


async def test_what_began_before_sigterm_is_finished_and_the_rest_given_back(site: Site) -> None:
    job_id, consumer = await busy(site)
    consumer.send(signal.SIGTERM)
    await consumer.logged("process.stopping")
    site.ledger.open_gate()
    await consumer.gone()
    assert consumer.lines("process.stopped")
    assert await site.platform.statuses(job_id) == {
        "SUCCEEDED": SLOTS,
        "PENDING": INPUTS - SLOTS,
    }
    await nothing_is_held(site, job_id)

    await site.start(consumers=1, dispatchers=0)
    await site.completed(job_id)
    assert site.ledger.runs() == dict.fromkeys(range(INPUTS), 1)
    assert not await site.witness.charges(job_id)
    site.fleet.none_failed()


async def test_what_does_not_end_within_the_drain_is_given_back_unharmed(site: Site) -> None:
    job_id, consumer = await busy(site, HAULAGE_DRAIN_SECONDS=0.1)
    consumer.send(signal.SIGTERM)
    await consumer.gone()
    assert consumer.lines("process.stopped")
    assert await site.platform.statuses(job_id) == {"PENDING": INPUTS}
    await nothing_is_held(site, job_id)

    site.ledger.open_gate()
    await site.start(consumers=1, dispatchers=0)
    await site.completed(job_id)
    assert site.ledger.runs() == dict.fromkeys(range(INPUTS), 1)
    assert not await site.witness.charges(job_id)
    site.fleet.none_failed()


async def test_kill_9_costs_one_lease_and_one_attempt_of_what_was_in_hand(site: Site) -> None:
    job_id, consumer = await busy(site, HAULAGE_LEASE_SECONDS=2)
    held = await site.platform.rows(
        "SELECT ordinal FROM input_state WHERE job_id = :id AND state = 'RUNNING'", id=job_id
    )
    consumer.send(signal.SIGKILL)
    await consumer.gone()
    site.ledger.open_gate()
    await site.start(consumers=1, dispatchers=0)
    await site.completed(job_id)
    charges = await site.witness.charges(job_id)
    assert charges == {row.ordinal: 1 for row in held}
    assert site.ledger.runs() == dict.fromkeys(range(INPUTS), 1)
    site.fleet.none_failed()


async def test_a_dispatcher_that_does_not_know_a_kind_repairs_it_all_the_same(site: Site) -> None:
    """As in a rolling deployment: the API and the consumers know the new kind already."""
    dispatcher = site.fleet.start("dispatcher", HAULAGE_KINDS="")
    consumer = site.fleet.start("consumer", HAULAGE_LEASE_SECONDS=1)
    await site.fleet.ready(dispatcher, consumer)
    job_id = await site.submit(inputs(CHUNK, gated=True), chunk_size=CHUNK)

    async def has_begun() -> bool:
        return bool(site.ledger.marks("began"))

    await eventually(has_begun, timeout_seconds=PATIENCE_SECONDS)
    consumer.send(signal.SIGKILL)
    await consumer.gone()
    site.ledger.open_gate()
    await site.start(consumers=1, dispatchers=0)
    await site.completed(job_id)
    assert await site.witness.charges(job_id) == dict.fromkeys(range(CHUNK), 1)
    site.fleet.none_failed()


async def test_a_consumer_that_wakes_after_its_lease_changes_nothing(site: Site) -> None:
    job_id, sleeper = await busy(site, HAULAGE_LEASE_SECONDS=1)
    sleeper.send(signal.SIGSTOP)
    site.ledger.open_gate()
    other, *_ = await site.start(consumers=1, dispatchers=0)
    await site.platform.until(job_id, "COMPLETED", timeout_seconds=PATIENCE_SECONDS)
    before = await site.witness.accepted_runs(job_id)
    sleeper.send(signal.SIGCONT)

    async def noticed() -> bool:
        return bool(sleeper.lines("entry.done"))

    await eventually(noticed, timeout_seconds=PATIENCE_SECONDS)
    assert {line["ended"] for line in sleeper.lines("entry.done")} == {"lost"}
    assert sum(line["accepted"] for line in sleeper.lines("entry.done")) == 0
    await site.check(job_id)
    assert await site.witness.accepted_runs(job_id) == before
    by_other = {mark.run for mark in site.ledger.marks("ended") if mark.pid == other.pid}
    assert set(before.values()) == by_other
    site.fleet.none_failed()


async def test_every_process_ends_at_once_on_sigterm_when_idle(site: Site) -> None:
    members = await site.start(consumers=1, dispatchers=1)
    members.append(site.fleet.start("api"))
    await members[-1].ready()
    for member in members:
        member.send(signal.SIGTERM)
    await asyncio.gather(*(member.gone() for member in members))
    for member in members:
        assert member.lines("process.stopped"), member.identity.name
    site.fleet.none_failed()
