"""What one input, one message or one neighbour may not do to all the others."""

import asyncio
import dataclasses

import pytest
from asyncpg import connect

from infra.database import Database
from infra.queue.protocol import Claim, ClaimedInput
from schema.ids import uuid7
from schema.outcome import Outcome, Succeeded
from schema.statements.claim import claim_by_id
from tests.deliveries import Delivery
from tests.platform import KIND, Platform, Recorder, settings_for


@pytest.mark.parametrize("result", [{"a": "\0"}, {"a": "\ud800"}, {"a": object()}])
async def test_an_outcome_that_cannot_be_recorded_harms_its_own_input_only(
    delivery: Delivery, platform: Platform, result: dict[str, object]
) -> None:
    """The runner hands it on unjudged, as if a judge before it had missed something."""

    def say(claim: Claim, input_: ClaimedInput) -> Outcome:
        return Succeeded(result if input_.ordinal == 7 else {"n": input_.ordinal})

    async with delivery.dispatching(), delivery.consuming(Recorder(say)):
        job_id = await platform.submit(20, chunk_size=20)
        delivery.listener.wake()
        job = await platform.until(job_id, "FAILED")
    assert (job.succeeded, job.dlq) == (19, 1)
    letter = (await platform.rows("SELECT ordinal, error_class FROM dead_letter"))[0]
    assert tuple(letter) == (7, "BadOutcome")
    attempts = await platform.rows("SELECT ordinal FROM attempt")
    assert [attempt.ordinal for attempt in attempts] == [7]
    await platform.check_consistency()


async def test_a_message_for_another_job_or_kind_does_not_claim_the_entry(
    platform: Platform, database: Database
) -> None:
    """The database was restored or reset, and old messages name ids that are others now."""
    job_id = await platform.submit(1)
    (entry,) = await platform.entries(job_id)
    for job_ids, kinds in (([uuid7()], [KIND]), ([job_id], ["other"])):
        stale = claim_by_id("w", 30, [entry.id], job_ids=job_ids, kinds=kinds)
        assert not await database.fetch(stale)
    assert await database.fetch(claim_by_id("w", 30, [entry.id], job_ids=[job_id], kinds=[KIND]))


async def test_a_drain_ends_in_time_although_outcomes_cannot_be_committed(
    delivery: Delivery, platform: Platform, database_url: str
) -> None:
    """Somebody holds the job's row for longer than the drain may take."""
    job_id = await platform.submit(2)
    blocker = await connect(database_url)
    transaction = blocker.transaction()

    async def block(claim: Claim, input_: ClaimedInput) -> Outcome:
        if input_.ordinal == 0:
            await transaction.start()
            await blocker.execute("SELECT FROM job FOR UPDATE")
        return Succeeded()

    hasty = settings_for(database_url, statement_timeout_seconds=0.2)
    async with Database.from_settings(hasty, name="hasty") as database:
        await delivery.deliver()
        station = dataclasses.replace(delivery, database=database)
        recorder = Recorder(block)
        async with asyncio.timeout(60):
            async with station.consuming(recorder, drain_seconds=0.2) as stop:
                delivery.listener.wake()
                await recorder.started.wait()
                stop.set()
    await transaction.rollback()
    await blocker.close()
    assert (await platform.job(job_id)).succeeded == 0
    await platform.check_consistency()
