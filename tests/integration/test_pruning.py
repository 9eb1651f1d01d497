"""Retention: what goes, what stays, and several pruners side by side."""

import asyncio
from uuid import UUID

from dispatcher.pruner import Pruner, Retention
from infra import redrive
from infra.database import Database
from infra.redrive_choice import InputChoice
from schema.outcome import Failed, Refused, Succeeded
from tests.platform import Platform
from tests.steps import claim_all, settle_as

KEEP = Retention(jobs_days=30, attempts_days=10, parked_messages_days=10, redrives_days=10)


def pruner(
    database: Database, *, most: int = 100, most_inputs: int = 5_000, events_are_sent: bool = True
) -> Pruner:
    return Pruner(
        database,
        keep=KEEP,
        most=most,
        most_inputs=most_inputs,
        events_are_sent=events_are_sent,
    )


async def finished(platform: Platform, many: int, *, days_ago: int) -> UUID:
    job_id = await platform.submit(many)
    for claim in await claim_all(platform.database, most=1_000):
        if claim.job_id == job_id:
            await settle_as(platform.database, claim, *[Succeeded()] * len(claim.inputs))
    await age(platform, job_id, days_ago)
    return job_id


async def age(platform: Platform, job_id: UUID, days: int) -> None:
    for statement in (
        "UPDATE job SET finished_at = now() - :days * interval '1 day' WHERE id = :id RETURNING id",
        "UPDATE dead_letter SET died_at = now() - :days * interval '1 day'"
        " WHERE job_id = :id RETURNING ordinal",
        "UPDATE attempt SET ended_at = now() - :days * interval '1 day'"
        " WHERE job_id = :id RETURNING ordinal",
    ):
        await platform.rows(statement, id=job_id, days=days)


async def test_old_jobs_go_with_their_history_and_young_ones_stay(
    platform: Platform, database: Database
) -> None:
    old = await finished(platform, 25, days_ago=31)
    young = await finished(platform, 25, days_ago=29)
    dead = await platform.submit(1)
    (claim,) = await claim_all(database)
    await settle_as(database, claim, Refused("Bad", "x"))
    await age(platform, dead, 31)
    while await pruner(database, most_inputs=10).once():
        await platform.check_consistency()
    jobs = {row.id for row in await platform.rows("SELECT id FROM job")}
    assert (old in jobs, young in jobs, dead in jobs) == (False, True, False)
    for table in ("input", "attempt", "dead_letter"):
        rows = await platform.rows(f"SELECT DISTINCT job_id FROM {table}")
        assert {row.job_id for row in rows} <= {young}
    await platform.check_consistency()


async def test_a_job_with_an_entry_or_a_young_letter_or_no_end_stays(
    platform: Platform, database: Database
) -> None:
    running = await platform.submit(1)
    await platform.rows("UPDATE job SET requested_at = now() - interval '99 days' RETURNING id")
    lettered = await platform.submit(1, priority=9)
    (claim,) = await claim_all(database, most=1)
    await settle_as(database, claim, Refused("Bad", "x"))
    evented = await finished(platform, 1, days_ago=31)
    for job_id in (lettered, evented):
        await platform.rows(
            "UPDATE job SET finished_at = now() - interval '99 days' WHERE id = :id RETURNING id",
            id=job_id,
        )
    await platform.rows(
        "INSERT INTO outbox (type, job_id, owner_id, kind, payload, correlation_id)"
        " SELECT 'event', id, owner_id, kind, '{}', 'c' FROM job WHERE id = :id RETURNING id",
        id=evented,
    )
    assert await pruner(database).once() == 0
    assert {row.id for row in await platform.rows("SELECT id FROM job")} == {
        running, lettered, evented,
    }  # fmt: skip


async def test_events_that_nobody_sends_go_with_their_job(
    platform: Platform, database: Database
) -> None:
    job_id = await finished(platform, 2, days_ago=31)
    await platform.rows(
        "INSERT INTO outbox (type, job_id, owner_id, kind, payload, correlation_id)"
        " SELECT 'event', id, owner_id, kind, '{}', 'c' FROM job, generate_series(1, 25)"
        " WHERE id = :id RETURNING id",
        id=job_id,
    )
    assert await pruner(database).once() == 0, "they may be sent yet"
    rounds = 0
    while await pruner(database, most_inputs=10, events_are_sent=False).once():
        rounds += 1
        await platform.check_consistency()
    assert rounds >= 3, "a batch at a time"
    assert not await platform.rows("SELECT id FROM outbox UNION ALL SELECT 1 FROM job")


async def test_pruning_from_several_instances_does_not_deadlock_and_prunes_all(
    platform: Platform, database: Database
) -> None:
    for _ in range(12):
        await finished(platform, 30, days_ago=40)
    failing = await platform.submit(40, chunk_size=40)
    (claim,) = await claim_all(database)
    await settle_as(database, claim, *[Failed("Boom", "x")] * 40)
    before = (await platform.rows("SELECT deadlocks FROM pg_stat_database WHERE datname ="
                                  " current_database()"))[0].deadlocks  # fmt: skip

    async def prune() -> None:
        one = pruner(database, most=3, most_inputs=17)
        for _ in range(200):
            if not await one.once():
                break

    async def work() -> None:
        for _ in range(10):
            for taken in await claim_all(database):
                await settle_as(database, taken, *[Succeeded()] * len(taken.inputs))

    await asyncio.gather(*(prune() for _ in range(4)), work())
    while await pruner(database).once():
        pass
    assert [row.id for row in await platform.rows("SELECT id FROM job")] == [failing]
    after = (await platform.rows("SELECT deadlocks FROM pg_stat_database WHERE datname ="
                                 " current_database()"))[0].deadlocks  # fmt: skip
    assert after == before
    await platform.check_consistency()


async def test_a_job_that_is_being_pruned_is_not_redriven(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(30)
    for claim in await claim_all(database):
        await settle_as(database, claim, *[Refused("Bad", "x")] * 10)
    await age(platform, job_id, 31)
    await pruner(database, most_inputs=10).once()
    progress = await database.run(
        lambda connection: redrive.request(
            connection, InputChoice(job_id), requested_by="t", owner_id=None, chunks={}
        )
    )
    assert (progress.redriven, progress.finished) == (0, True)


async def test_resolved_messages_and_finished_redrives_go_and_open_ones_stay(
    platform: Platform, database: Database
) -> None:
    await platform.rows(
        "INSERT INTO parked_message (queue, message_id, reason, body, attributes, resolution,"
        " resolved_at) VALUES ('q', 'old', 'r', 'b', '{}', 'settled', now() - interval '11 days'),"
        " ('q', 'new', 'r', 'b', '{}', 'settled', now()), ('q', 'open', 'r', 'b', '{}', NULL, NULL)"
        " RETURNING id"
    )
    await platform.rows(
        "INSERT INTO redrive (id, requested_by, source, filter, finished_at) VALUES"
        " (gen_random_uuid(), 'old', 'dlq', '{}', now() - interval '11 days'),"
        " (gen_random_uuid(), 'open', 'dlq', '{}', NULL) RETURNING id"
    )
    assert await pruner(database).once() == 2
    left = await platform.rows("SELECT message_id FROM parked_message ORDER BY 1")
    assert [row.message_id for row in left] == ["new", "open"]
    assert [row.requested_by for row in await platform.rows("SELECT * FROM redrive")] == ["open"]


async def test_after_finding_nothing_it_rests_and_asks_the_database_nothing(
    platform: Platform, database: Database
) -> None:
    seconds = 0.0
    resting = Pruner(
        database, keep=KEEP, most=100, most_inputs=3, rest_seconds=60, clock=lambda: seconds
    )
    assert await resting.once() == 0
    old = await finished(platform, 5, days_ago=31)
    seconds = 59.0
    assert await resting.once() == 0
    assert await platform.job(old)
    seconds = 60.0
    assert await resting.once() > 0
    assert await resting.once() > 0, "it goes on as long as it finds something"
