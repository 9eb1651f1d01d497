"""Control against settling, claiming, releasing and sweeping, interleaved by hand and by chance."""

import asyncio
import random
from dataclasses import dataclass
from uuid import UUID

import pytest

from dispatcher.reaper import Reaper
from infra.database import Database, rows_of
from infra.settle import Settlement, _Line, _settle_with_consequences
from schema.lifecycle import InputStatus
from schema.outcome import Backoff, Failed, Outcome, Refused, Succeeded, Verdict
from schema.statements.claim import claim_ready, release_entries, take_over_lapsed
from schema.statements.control import (
    cancel_job,
    clear_sweeping,
    lock_sweeping_job,
    pause_job,
    resume_job,
)
from tests.platform import KIND, Platform, seeded
from tests.steps import (
    Control,
    at_once,
    claim_all,
    control,
    lapse,
    open_unit,
    settle_as,
    sweep,
    sweeper,
    until_waiting_for_a_lock,
)


@pytest.mark.parametrize("statement", [cancel_job, pause_job])
async def test_a_follow_up_that_a_settling_inserts_after_a_control_is_swept_too(
    platform: Platform, database: Database, statement: Control
) -> None:
    """The settling holds the job when the sweeper wants to call it swept."""
    job_id = await platform.submit(1)
    (claim,) = await claim_all(database)
    await control(platform, statement, job_id)
    version = (await platform.job(job_id)).control_version
    verdict = Verdict(InputStatus.RETRY_WAIT, 0.0, "Boom", "x")
    line = _Line(Settlement(claim, claim.inputs[0], Failed("Boom", "x"), 1), verdict)

    async def clear() -> bool:
        async with open_unit(database) as unit:
            await unit.execute(lock_sweeping_job(job_id, version))
            return bool((await unit.execute(clear_sweeping(job_id, version))).all())

    async with asyncio.TaskGroup() as group:
        async with open_unit(database) as settling:
            assert await _settle_with_consequences(settling, "w", [line], events=False)
            clearing = group.create_task(clear())
            await until_waiting_for_a_lock(platform)
    # Paused: the follow-up was born in its place. Cancelled: it must go first.
    assert clearing.result() == (statement is pause_job)
    await platform.check_consistency()
    await sweep(database)
    states = [entry.state for entry in await platform.entries(job_id)]
    assert states == (["HELD"] if statement is pause_job else [])
    assert not (await platform.job(job_id)).sweeping
    await platform.check_consistency()


async def test_a_release_that_meets_a_resume_does_not_leave_its_entry_held(
    platform: Platform, database: Database
) -> None:
    """Whichever of the two comes first, the entry ends up due again."""
    for seed in range(10):
        job_id = await platform.submit(3)
        (claim,) = [one for one in await claim_all(database) if one.job_id == job_id]
        await control(platform, pause_job, job_id)
        await at_once(
            seed,
            database.fetch(release_entries([claim.entry_id], [claim.epoch], 0)),
            control(platform, resume_job, job_id),
            sweep(database),
            sweep(database),
        )
        await sweep(database)
        (entry,) = await platform.entries(job_id)
        assert entry.state == "PENDING"
        assert not (await platform.job(job_id)).sweeping
        await platform.check_consistency()
        for taken in await claim_all(database):
            await settle_as(database, taken, *[Succeeded()] * 3)


async def test_an_entry_that_is_claimed_while_its_job_is_cancelled_is_swept_after(
    platform: Platform, database: Database
) -> None:
    """The claim read the job as active, and holds the entry while the sweeper passes."""
    job_id = await platform.submit(10)
    async with open_unit(database) as claiming:
        rows = await rows_of(claiming, claim_ready("w", 30, kinds=[KIND], most=10))
        assert len(rows) == 1
        # ``started`` holds the job: the cancel waits for the claim to be committed.
        async with asyncio.TaskGroup() as group:
            cancelling = group.create_task(control(platform, cancel_job, job_id))
            await until_waiting_for_a_lock(platform)
            await claiming.commit()
    assert cancelling.result().was == "RUNNING"
    await sweep(database)
    assert await platform.statuses(job_id) == {"CANCELLED": 10}
    await platform.check_consistency()


async def test_a_resume_that_waits_for_the_last_settling_ends_the_job(
    platform: Platform, database: Database
) -> None:
    """A CHECK once compared the new status with counters from before the wait."""
    job_id = await platform.submit(2)
    (claim,) = await claim_all(database)
    await settle_as(database, claim, Succeeded())
    await control(platform, pause_job, job_id)
    line = _Line(Settlement(claim, claim.inputs[1], Succeeded(), 1), Verdict(InputStatus.SUCCEEDED))
    async with asyncio.TaskGroup() as group:
        async with open_unit(database) as settling:
            assert await _settle_with_consequences(settling, "w", [line], events=False)
            resuming = group.create_task(control(platform, resume_job, job_id))
            await until_waiting_for_a_lock(platform)
    assert resuming.result().status == "COMPLETED"
    await platform.check_consistency()


async def test_a_pause_and_a_cancel_at_once_leave_the_job_cancelled(
    platform: Platform, database: Database
) -> None:
    for _ in range(10):
        job_id = await platform.submit(20)
        await asyncio.gather(
            control(platform, pause_job, job_id),
            sweeper(database).once(),
            control(platform, cancel_job, job_id),
            sweeper(database).once(),
        )
        await sweep(database)
        job = await platform.job(job_id)
        assert (job.status, job.cancelled, job.sweeping) == ("CANCELLED", 20, False)
    await platform.check_consistency()


@dataclass
class Mixture:
    """Workers, reapers, sweepers and controls, each doing something at random."""

    platform: Platform
    database: Database
    jobs: list[UUID]

    async def work(self, rng: random.Random) -> None:
        for _ in range(25):
            for claim in await claim_all(self.database, most=3):
                choice = rng.random()
                if choice < 0.15:
                    await self.database.fetch(release_entries([claim.entry_id], [claim.epoch], 0))
                elif choice < 0.25:
                    await lapse(self.platform, claim.job_id)
                else:
                    await settle_as(self.database, claim, *[outcome(rng) for _ in claim.inputs])

    async def steer(self, rng: random.Random) -> None:
        for _ in range(15):
            statement = rng.choices([pause_job, resume_job, cancel_job], [5, 6, 1])[0]
            await control(self.platform, statement, rng.choice(self.jobs))

    async def repair(self) -> None:
        backoffs = {KIND: Backoff(0, 0)}
        reaper = Reaper(
            self.database,
            lease_seconds=30,
            backoffs=backoffs,
            most=10,
            wake=lambda: None,
            tell=lambda: None,
        )
        for _ in range(20):
            await reaper.once()

    async def sweep(self) -> None:
        one = sweeper(self.database, most=3)
        for _ in range(40):
            await one.once()

    async def watch(self) -> None:
        for _ in range(10):
            await self.platform.check_consistency()


@pytest.mark.parametrize("seed", range(6))
async def test_any_mixture_of_work_and_control_adds_up(
    platform: Platform, database: Database, seed: int
) -> None:
    rng = seeded(seed)
    jobs = [
        await platform.submit(40, chunk_size=rng.choice([1, 7, 10]), fail_fast=n == 0)
        for n in range(4)
    ]
    mixture = Mixture(platform, database, jobs)
    await asyncio.gather(
        *(mixture.work(random.Random(rng.random())) for _ in range(3)),
        mixture.steer(random.Random(rng.random())),
        mixture.repair(),
        mixture.sweep(),
        mixture.sweep(),
        mixture.watch(),
    )
    await run_out(platform, database, jobs)
    await platform.check_consistency()
    for job_id in jobs:
        job = await platform.job(job_id)
        assert job.finished_at is not None
        assert not job.sweeping
        assert not await platform.entries(job_id)


def outcome(rng: random.Random) -> Outcome:
    choice = rng.random()
    if choice < 0.1:
        return Failed("Boom", "x")
    return Refused("Bad", "y") if choice < 0.11 else Succeeded()


async def run_out(platform: Platform, database: Database, jobs: list[UUID]) -> None:
    for _ in range(50):
        for job_id in jobs:
            await control(platform, resume_job, job_id)
            await lapse(platform, job_id)
        await sweep(database)
        rows = await database.fetch(take_over_lapsed(30, most=100))
        ids = [entry.id for job_id in jobs for entry in await platform.entries(job_id)]
        if not ids:
            return
        for row in rows:
            await database.fetch(release_entries([row.entry_id], [row.epoch], 0))
        for claim in await claim_all(database):
            await settle_as(database, claim, *[Succeeded()] * len(claim.inputs))
