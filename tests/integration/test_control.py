"""Pause, resume, cancel and expire: each move, each idempotent, in both modes of delivery."""

import asyncio
from collections import Counter
from uuid import UUID

import pytest

from dispatcher.expirer import Expirer
from dispatcher.sweeper import Sweeper
from infra.database import Database
from infra.queue.protocol import Claim, ClaimedInput
from schema.outcome import Failed, Outcome, Succeeded
from schema.statements.claim import claim_ready, next_ready
from schema.statements.control import cancel_job, pause_job, resume_job
from tests.deliveries import Delivery
from tests.integration.faults.stations import log_lines, named
from tests.platform import KIND, Gated, Platform, Recorder, eventually
from tests.steps import Control, claim_all, control, kill, lapse, settle_as, sweep


async def states(platform: Platform, job_id: UUID) -> Counter[str]:
    return Counter(entry.state for entry in await platform.entries(job_id))


async def test_a_job_pauses_before_it_started_and_resumes_running(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(25)
    paused = await control(platform, pause_job, job_id)
    assert (paused.was, paused.status, paused.changed) == ("SUBMITTED", "PAUSED", True)
    await sweep(database)
    assert await states(platform, job_id) == {"HELD": 3}
    assert not await claim_all(database)
    assert not await database.fetch(next_ready())
    assert not (await platform.job(job_id)).sweeping
    await platform.check_consistency()
    resumed = await control(platform, resume_job, job_id)
    assert (resumed.was, resumed.status, resumed.changed) == ("PAUSED", "RUNNING", True)
    await sweep(database)
    assert await states(platform, job_id) == {"PENDING": 3}
    for claim in await claim_all(database):
        await settle_as(database, claim, *[Succeeded()] * len(claim.inputs))
    job = await platform.job(job_id)
    assert (job.status, job.started_at is not None) == ("COMPLETED", True)
    await platform.check_consistency()


@pytest.mark.parametrize("statement", [pause_job, resume_job, cancel_job])
async def test_a_control_that_is_repeated_changes_nothing(
    platform: Platform, statement: Control
) -> None:
    job_id = await platform.submit(5)
    if statement is resume_job:
        await control(platform, pause_job, job_id)
    first = await control(platform, statement, job_id)
    job = await platform.job(job_id)
    again = await control(platform, statement, job_id)
    assert (first.changed, again.changed, again.was) == (True, False, first.status)
    assert await platform.job(job_id) == job


@pytest.mark.parametrize("statement", [pause_job, resume_job, cancel_job])
async def test_a_job_that_has_ended_is_not_controlled_any_more(
    platform: Platform, database: Database, statement: Control
) -> None:
    job_id = await platform.submit(1)
    (claim,) = await claim_all(database)
    await settle_as(database, claim, Succeeded())
    answer = await control(platform, statement, job_id)
    assert (answer.was, answer.status, answer.changed) == ("COMPLETED", "COMPLETED", False)


async def test_another_owners_job_is_no_job(platform: Platform, database: Database) -> None:
    job_id = await platform.submit(1)
    key = (await platform.job(job_id)).key
    assert not await database.fetch(pause_job(key, owner_id=UUID(int=1)))
    assert await database.fetch(pause_job(key, owner_id=platform.owner_id))


async def test_a_job_whose_last_input_ends_while_it_is_paused_ends_when_it_is_resumed(
    platform: Platform, database: Database
) -> None:
    for outcome, end in ((Succeeded(), "COMPLETED"), (Failed("Boom", "x"), "FAILED")):
        job_id = await platform.submit(1, max_attempts=1)
        (claim,) = await claim_all(database)
        await control(platform, pause_job, job_id)
        await settle_as(database, claim, outcome)
        assert (await platform.job(job_id)).status == "PAUSED"
        resumed = await control(platform, resume_job, job_id)
        assert (resumed.was, resumed.status) == ("PAUSED", end)
        assert (await platform.job(job_id)).finished_at is not None
        await sweep(database)
        assert not (await platform.job(job_id)).sweeping
    await platform.check_consistency()


async def test_a_cancelled_job_ends_at_once_and_its_inputs_are_swept_and_counted(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(30)
    first, *_ = await claim_all(database, most=1)
    await settle_as(database, first, Succeeded(), Failed("Boom", "x"))
    answer = await control(platform, cancel_job, job_id)
    assert (answer.was, answer.status) == ("RUNNING", "CANCELLED")
    assert not await claim_all(database)
    await sweep(database)
    job = await platform.job(job_id)
    assert (job.status, job.succeeded, job.cancelled, job.sweeping) == ("CANCELLED", 1, 29, False)
    assert await platform.statuses(job_id) == {"SUCCEEDED": 1, "CANCELLED": 29}
    assert not await platform.entries(job_id)
    rows = await platform.rows("SELECT DISTINCT error_class FROM input WHERE status = 'CANCELLED'")
    assert [row.error_class for row in rows] == ["Cancelled"]
    await platform.check_consistency()


@pytest.mark.parametrize(("chunk", "batches"), [(1, [500, 500, 200]), (1_000, [2, 2, 1])])
async def test_a_batch_of_a_sweep_is_bounded_by_its_entries_and_by_their_inputs(
    platform: Platform, database: Database, chunk: int, batches: list[int]
) -> None:
    """Claims pass over what is not swept yet: small entries go many at a time."""
    job_id = await platform.submit(chunk * sum(batches), chunk_size=chunk)
    await control(platform, cancel_job, job_id)
    sweeper = Sweeper(database, most=100, wake=lambda: None, tell=lambda: None)
    assert [await sweeper.once() for _ in range(4)] == [*batches, 0]
    job = await platform.job(job_id)
    assert (job.cancelled, job.sweeping) == (chunk * sum(batches), False)
    await platform.check_consistency()


async def test_a_late_finish_does_not_overwrite_a_cancel_nor_a_cancel_a_success(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(20)
    one, other = await claim_all(database)
    await settle_as(database, one, *[Succeeded()] * 10)
    await control(platform, cancel_job, job_id)
    await sweep(database)
    late = await settle_as(database, other, *[Succeeded()] * 10)
    assert not any(line.accepted for line in late)
    assert await platform.statuses(job_id) == {"SUCCEEDED": 10, "CANCELLED": 10}
    await platform.check_consistency()


async def test_a_lease_that_lapses_under_a_cancelled_job_charges_nobody(
    delivery: Delivery, platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(3, max_attempts=1)
    await claim_all(database)
    await control(platform, cancel_job, job_id)
    await lapse(platform, job_id)
    for service in delivery.services():
        await service.once()
    await sweep(database)
    assert await platform.statuses(job_id) == {"CANCELLED": 3}
    assert not await platform.rows("SELECT * FROM attempt")


async def test_a_job_past_its_time_starts_nothing_and_expires(
    platform: Platform, database: Database
) -> None:
    jobs = [await platform.submit(12) for _ in range(3)]
    await control(platform, pause_job, jobs[1])
    await sweep(database)
    await platform.rows(
        "UPDATE job SET expires_at = now() - interval '1 second' WHERE id = ANY(:ids) RETURNING id",
        ids=jobs[:2],
    )
    claimed = await database.fetch(claim_ready("w", 30, kinds=[KIND], most=100))
    assert {row.job_id for row in claimed} == {jobs[2]}
    assert await Expirer(database, most=100, tell=lambda: None).once() == 2
    await sweep(database)
    for job_id in jobs[:2]:
        job = await platform.job(job_id)
        assert (job.status, job.expired) == ("EXPIRED", 12)
    assert (await platform.job(jobs[2])).status == "RUNNING"
    await platform.check_consistency()


async def test_a_paused_job_lets_go_of_what_has_not_started_and_keeps_what_runs(
    delivery: Delivery, platform: Platform
) -> None:
    recorder = Gated()
    job_id = await platform.submit(10)
    async with delivery.dispatching(), delivery.consuming(recorder, concurrency=3):
        delivery.listener.wake()
        await recorder.started.wait()
        (before,) = await platform.entries(job_id)
        await control(platform, pause_job, job_id)
        delivery.listener.tell_controlled()

        async def heard() -> bool:
            (entry,) = await platform.entries(job_id)
            return bool(entry.locked_until > before.locked_until)

        await eventually(heard, timeout_seconds=4)
        recorder.gate.set()

        async def settled() -> bool:
            job = await platform.job(job_id)
            return not job.sweeping and not (await platform.statuses(job_id))["RUNNING"]

        await eventually(settled)
        assert await platform.statuses(job_id) == {"SUCCEEDED": 3, "PENDING": 7}
        (entry,) = await platform.entries(job_id)
        assert (entry.state, entry.locked_by, entry.unfinished) == ("HELD", None, 7)
        await platform.check_consistency()
        await control(platform, resume_job, job_id)
        delivery.listener.tell_controlled()
        job = await platform.until(job_id, "COMPLETED")
    assert (job.succeeded, len(recorder.ran)) == (10, 10)
    assert not await platform.rows("SELECT * FROM attempt")
    await platform.check_consistency()


async def test_a_claim_that_waits_for_a_slot_lets_go_at_once_when_its_job_is_paused(
    delivery: Delivery, platform: Platform
) -> None:
    async def endless(claim: Claim, input_: ClaimedInput) -> Outcome:
        await asyncio.Event().wait()
        return Succeeded()

    recorder = Recorder(endless)
    busy = await platform.submit(1, priority=9)
    waiting = await platform.submit(5)
    async with (
        delivery.dispatching(),
        delivery.consuming(recorder, concurrency=1, prefetch_inputs=50, drain_seconds=0.05),
    ):
        delivery.listener.wake()

        async def claimed() -> bool:
            return (await states(platform, waiting))["CLAIMED"] == 1 and recorder.started.is_set()

        await eventually(claimed)
        await control(platform, pause_job, waiting)
        delivery.listener.tell_controlled()

        async def held() -> bool:
            return await states(platform, waiting) == {"HELD": 1}

        await eventually(held, timeout_seconds=4)
        assert (await platform.statuses(busy))["RUNNING"] == 1


async def test_running_work_of_a_cancelled_job_is_interrupted_at_once(
    delivery: Delivery, platform: Platform
) -> None:
    interrupted = asyncio.Event()

    async def endless(claim: Claim, input_: ClaimedInput) -> Outcome:
        try:
            await asyncio.Event().wait()
        finally:
            interrupted.set()
        return Succeeded()

    recorder = Recorder(endless)
    job_id = await platform.submit(4)
    with log_lines() as lines:
        async with (
            delivery.dispatching(),
            delivery.consuming(recorder, concurrency=2, lease_seconds=3_600),
        ):
            delivery.listener.wake()
            await recorder.started.wait()
            await control(platform, cancel_job, job_id)
            delivery.listener.tell_controlled()
            await asyncio.wait_for(interrupted.wait(), timeout=10)

            async def swept() -> bool:
                return not (await platform.job(job_id)).sweeping

            await eventually(swept)
    assert await platform.statuses(job_id) == {"CANCELLED": 4}
    # A client that cancels is no fault, and is told apart from a lease that was lost.
    assert not named(lines, "lease.lost")
    assert {line["interrupted"] for line in named(lines, "entry.stopped")} == {2}
    assert {line["ended"] for line in named(lines, "entry.done")} == {"stopped"}
    await platform.check_consistency()


async def test_a_resumed_job_keeps_no_dead_owner(
    delivery: Delivery, platform: Platform, database: Database
) -> None:
    """The worker vanishes while its job is paused; nobody waits for it after the resume."""
    job_id = await platform.submit(3)
    await delivery.deliver()
    await delivery.queue("vanished").claim(10, asyncio.Event())
    await control(platform, pause_job, job_id)
    await lapse(platform, job_id)
    for service in delivery.services():
        await service.once()
    assert {(entry.state, entry.locked_by) for entry in await platform.entries(job_id)} == {
        ("HELD", None)
    }
    await sweep(database)
    await control(platform, resume_job, job_id)
    async with delivery.dispatching(), delivery.consuming(Recorder()):
        assert (await platform.until(job_id, "COMPLETED")).succeeded == 3
    await platform.check_consistency()


async def test_a_message_that_arrives_while_its_job_is_paused_costs_no_wait_after_the_resume(
    delivery: Delivery, platform: Platform
) -> None:
    """Its deletion left an entry SENT without any message, to be sent again after minutes."""
    job_id = await platform.submit(2)
    await delivery.deliver()
    await control(platform, pause_job, job_id)
    assert not await delivery.queue("w").claim(10, asyncio.Event())
    await control(platform, resume_job, job_id)
    async with delivery.dispatching(), delivery.consuming(Recorder()):
        assert (await platform.until(job_id, "COMPLETED", timeout_seconds=15)).succeeded == 2
    await platform.check_consistency()


async def test_a_dead_job_can_be_told_from_a_cancelled_one(platform: Platform) -> None:
    job_id = await platform.submit(3)
    await kill(platform, job_id)
    answer = await control(platform, cancel_job, job_id)
    assert (answer.status, answer.changed) == ("FAILED", False)
