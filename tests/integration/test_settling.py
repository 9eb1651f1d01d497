"""Claim and settle against a real Postgres: what is accepted, what follows, what is refused."""

import asyncio

import pytest
from structlog.testing import capture_logs

from infra.database import Database
from infra.queue.protocol import Claim, ClaimedInput
from infra.settle import Settlement, settle
from infra.wakeup import Listener
from schema.outcome import Artifact, Backoff, Failed, Missing, Outcome, Refused, Skipped, Succeeded
from schema.statements.claim import claim_by_id, release_entries, take_over_lapsed
from tests.deliveries import open_delivery
from tests.platform import KIND, Platform, Recorder, seeded, settings_for
from tests.steps import claim_all, lapse, settle_as


async def test_job_inputs_and_entries_commit_together_or_not_at_all(platform: Platform) -> None:
    with pytest.raises(Exception, match="job_priority"):
        await platform.submit(25, priority=11)
    assert not await platform.rows("SELECT id FROM job")
    assert not await platform.rows("SELECT id FROM outbox")
    assert not await platform.rows("SELECT ordinal FROM input")
    job_id = await platform.submit(25)
    assert [entry.unfinished for entry in await platform.entries(job_id)] == [10, 10, 5]
    await platform.check_consistency()


async def test_a_settled_chunk_leaves_no_entry_and_completes_its_job(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(25)
    for claim in await claim_all(database):
        settled = await settle_as(database, claim, *[Succeeded({"n": 1})] * len(claim.inputs))
        assert all(line.accepted for line in settled)
    job = await platform.job(job_id)
    assert (job.status, job.succeeded, job.finished_at is not None) == ("COMPLETED", 25, True)
    assert not await platform.entries(job_id)
    await platform.check_consistency()


async def test_a_partly_settled_chunk_keeps_its_entry_for_the_rest(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(10)
    (claim,) = await claim_all(database)
    await settle_as(database, claim, Succeeded(), Skipped("nothing to do"), Missing("no rows"))
    (entry,) = await platform.entries(job_id)
    assert (entry.unfinished, entry.state) == (7, "CLAIMED")
    assert await platform.statuses(job_id) == {
        "RUNNING": 7,
        "SUCCEEDED": 1,
        "SKIPPED": 1,
        "NOT_FOUND": 1,
    }
    await platform.check_consistency()


async def test_outcomes_of_any_order_and_mixture_are_recorded_each_for_its_own_input(
    platform: Platform, database: Database
) -> None:
    """Neighbours with the same outcome are written as one: with gaps, and in parts."""
    chance = seeded(7)
    job_id = await platform.submit(40)
    said = [
        chance.choice((Succeeded(), Succeeded({"n": 1}), Skipped("no"), Missing("none")))
        for _ in range(40)
    ]
    settlements = [
        Settlement(claim, input_, said[input_.ordinal], chance.choice((0, 1)))
        for claim in await claim_all(database)
        for input_ in claim.inputs
    ]
    chance.shuffle(settlements)
    for part in (settlements[:17], settlements[17:18], settlements[18:]):
        settled = await settle(database, "worker", part, backoffs={}, jitter=lambda: 0.0)
        assert all(line.accepted for line in settled)
    rows = await platform.rows(
        "SELECT status, result, elapsed_ms FROM input WHERE job_id = :id ORDER BY ordinal",
        id=job_id,
    )
    took = {one.input.ordinal: one.elapsed_ms for one in settlements}
    statuses = {Succeeded: "SUCCEEDED", Skipped: "SKIPPED", Missing: "NOT_FOUND"}
    assert [tuple(row) for row in rows] == [
        (statuses[type(one)], getattr(one, "result", None) or None, took[ordinal])
        for ordinal, one in enumerate(said)
    ]
    assert (await platform.job(job_id)).finished_at is not None
    await platform.check_consistency()


async def test_a_failed_input_waits_in_a_follow_up_entry_and_dies_when_attempts_are_spent(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(["a", "b"], max_attempts=2)
    (claim,) = await claim_all(database)
    await settle_as(database, claim, Failed("Boom", "first 1"), Succeeded())
    (entry,) = await platform.entries(job_id)
    assert (entry.first_ordinal, entry.unfinished, entry.state) == (0, 1, "PENDING")
    await platform.check_consistency()
    (retry,) = await claim_all(database)
    assert [(input_.ordinal, input_.attempts) for input_ in retry.inputs] == [(0, 1)]
    await settle_as(database, retry, Failed("Boom", "second 2"))
    job = await platform.job(job_id)
    assert (job.status, job.dlq, job.succeeded, job.error_message) == ("FAILED", 1, 1, "second 2")
    attempts = await platform.rows("SELECT attempt, status FROM attempt ORDER BY attempt")
    assert [tuple(row) for row in attempts] == [(1, "RETRY_WAIT"), (2, "DLQ")]
    await platform.check_consistency()


async def test_inputs_that_fail_alike_share_one_follow_up_entry(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(10)
    (claim,) = await claim_all(database)
    outcomes: list[Outcome] = [Failed("Boom", "x"), Succeeded()] * 5
    await settle_as(database, claim, *outcomes)
    (entry,) = await platform.entries(job_id)
    assert (entry.first_ordinal, entry.last_ordinal, entry.unfinished) == (0, 8, 5)
    (retry,) = await claim_all(database)
    assert [input_.ordinal for input_ in retry.inputs] == [0, 2, 4, 6, 8]


async def test_a_refused_input_dies_at_once_with_reason_and_fingerprint(
    platform: Platform, database: Database
) -> None:
    await platform.submit(["a", "b"])
    (claim,) = await claim_all(database)
    await settle_as(
        database, claim, Refused("Bad", "row 17 of 'x'"), Refused("Bad", "row 4 of 'y'")
    )
    letters = await platform.rows("SELECT error_message, fingerprint FROM dead_letter")
    assert len(letters) == 2
    assert len({letter.fingerprint for letter in letters}) == 1


async def test_a_late_write_of_a_lapsed_lease_changes_nothing(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(3)
    (claim,) = await claim_all(database)
    await lapse(platform, job_id)
    settled = await settle_as(database, claim, *[Succeeded()] * 3)
    assert not any(line.accepted for line in settled)
    assert (await platform.statuses(job_id)) == {"PENDING": 3}
    await platform.check_consistency()


async def test_an_outcome_under_an_older_epoch_is_refused_even_beside_the_newer_one(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(2)
    (old,) = await claim_all(database)
    await database.fetch(release_entries([old.entry_id], [old.epoch], 0))
    (new,) = await claim_all(database)
    assert new.epoch == old.epoch + 1
    lines = await settle(
        database,
        "worker",
        [
            Settlement(old, old.inputs[0], Refused("Old", "stale"), 1),
            Settlement(new, new.inputs[1], Succeeded(), 1),
        ],
        backoffs={KIND: Backoff()},
        jitter=lambda: 0.5,
    )
    assert [line.accepted for line in lines] == [False, True]
    assert (await platform.job(job_id)).dlq == 0
    await platform.check_consistency()


async def test_settling_twice_counts_once(platform: Platform, database: Database) -> None:
    job_id = await platform.submit(3)
    (claim,) = await claim_all(database)
    await settle_as(database, claim, Succeeded())
    again = await settle_as(database, claim, Succeeded(), Succeeded())
    assert [line.accepted for line in again] == [False, True]
    assert (await platform.job(job_id)).succeeded == 2
    await platform.check_consistency()


async def test_the_last_two_finishers_complete_the_job_between_them(
    platform: Platform, database: Database
) -> None:
    for _ in range(20):
        job_id = await platform.submit(2, chunk_size=1)
        claims = await claim_all(database)
        await asyncio.gather(*(settle_as(database, claim, Succeeded()) for claim in claims))
        assert (await platform.job(job_id)).status == "COMPLETED"


async def test_settling_the_same_jobs_in_opposite_order_does_not_lose_anything(
    platform: Platform, database: Database
) -> None:
    jobs = [await platform.submit(20, chunk_size=1) for _ in range(4)]
    claims = await claim_all(database)

    async def settle_many(part: list[Claim]) -> None:
        await settle(
            database,
            "worker",
            [Settlement(claim, claim.inputs[0], Succeeded(), 1) for claim in part],
            backoffs={KIND: Backoff()},
            jitter=lambda: 0.5,
        )

    await asyncio.gather(
        settle_many(claims[::4]),
        settle_many(claims[1::4][::-1]),
        settle_many(claims[2::4]),
        settle_many(claims[3::4][::-1]),
    )
    assert {(await platform.job(job_id)).status for job_id in jobs} == {"COMPLETED"}
    await platform.check_consistency()


async def test_a_claim_raises_the_epoch_and_only_one_of_two_claimers_wins(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(1)
    (entry,) = await platform.entries(job_id)
    results = await asyncio.gather(
        *(database.fetch(claim_by_id(f"w{n}", 30, [entry.id])) for n in range(5))
    )
    assert sum(len(rows) for rows in results) == 1
    (entry,) = await platform.entries(job_id)
    assert (entry.epoch, entry.state) == (1, "CLAIMED")
    assert (await platform.job(job_id)).status == "RUNNING"


async def test_released_work_is_due_again_at_no_cost(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(2)
    (claim,) = await claim_all(database)
    assert await database.fetch(release_entries([claim.entry_id], [claim.epoch], 0))
    (again,) = await claim_all(database)
    assert [input_.attempts for input_ in again.inputs] == [0, 0]
    assert not await database.fetch(release_entries([claim.entry_id], [claim.epoch], 0))
    assert (await platform.statuses(job_id))["RUNNING"] == 2


async def test_a_lapsed_lease_is_taken_over_once_and_names_the_worker_that_vanished(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(2)
    await claim_all(database)
    await lapse(platform, job_id)
    taken = await asyncio.gather(*(database.fetch(take_over_lapsed(30, most=10)) for _ in range(3)))
    rows = [row for found in taken for row in found]
    assert [row.worker for row in rows] == ["reaper of worker"]
    assert rows[0].epoch == 2


async def test_a_repair_that_lapses_itself_still_charges_the_worker_that_vanished(
    platform: Platform, database: Database
) -> None:
    """As when a stalled database carries out the repair that its reaper has given up on."""
    job_id = await platform.submit(2)
    await claim_all(database)
    for epoch in (2, 3):
        await lapse(platform, job_id)
        (taken,) = await database.fetch(take_over_lapsed(30, most=10))
        assert (taken.worker, taken.epoch) == ("reaper of worker", epoch)
    (entry,) = await platform.entries(job_id)
    assert entry.locked_by == "reaper of worker"


async def test_a_registered_artifact_is_replaced_by_a_later_one(
    platform: Platform, database: Database
) -> None:
    await platform.submit(["a", "b"])
    (claim,) = await claim_all(database)
    await settle_as(
        database,
        claim,
        Succeeded({}, Artifact("k", "s3://b/1", 1, "e1"), reused=False),
        Succeeded({}, Artifact("k", "s3://b/2", 2, "e2"), reused=False),
    )
    await platform.submit(["c"])
    (claim,) = await claim_all(database)
    await settle_as(
        database, claim, Succeeded({}, Artifact("k", "s3://b/3", 3, "e3"), reused=False)
    )
    artifacts = await platform.rows("SELECT uri, size_bytes FROM artifact")
    assert [tuple(row) for row in artifacts] == [("s3://b/3", 3)]
    await platform.check_consistency()


async def test_what_does_not_exist_is_a_normal_outcome_and_no_warning(
    platform: Platform, database: Database, database_url: str
) -> None:
    def say(_: Claim, input_: ClaimedInput) -> Outcome:
        return Missing("no rows") if input_.ordinal else Refused("Bad", "no good")

    job_id = await platform.submit(5)
    settings = settings_for(database_url)
    listener = Listener(settings, name="test")
    async with open_delivery("outbox", settings, database, listener) as delivery:
        with capture_logs() as lines:
            async with delivery.consuming(Recorder(say)):
                await platform.until(job_id, "FAILED")
    told = [(line["event"], line["log_level"]) for line in lines if line["event"][:6] == "input."]
    assert told.count(("input.not_found", "debug")) == 4
    assert told.count(("input.failed", "error")) == 1
    assert len(told) == 5
    (draining,) = [line for line in lines if line["event"] == "consumer.draining"]
    assert draining["drain_seconds"] == settings.drain_seconds
