"""Redrive: what it takes back, what it leaves, and what happens beside it."""

import asyncio
import datetime as dt
from uuid import UUID

import pytest

from dispatcher.redriver import Redriver
from infra import redrive
from infra.database import Database
from infra.redrive import Progress
from infra.redrive_choice import Choice, InputChoice
from schema.lifecycle import InputStatus
from schema.outcome import Failed, Lapsed, Missing, Refused, Succeeded
from schema.statements.control import cancel_job, pause_job, resume_job
from schema.statements.dead_letters import LetterFilter, list_causes, list_dead_letters
from schema.statements.history import find_input, list_attempts
from schema.statements.redrive import find_redrive
from tests.platform import KIND, KINDS, Platform
from tests.steps import at_once, claim_all, control, kill, open_unit, settle_as, sweep

CHUNKS = {KIND: KINDS[KIND].chunk}
DEAD = Refused("Bad", "no good")
DLQ = (InputStatus.DLQ,)


async def ask(database: Database, choice: Choice) -> Progress:
    return await database.run(
        lambda connection: redrive.request(
            connection, choice, requested_by="tester", owner_id=None, chunks=CHUNKS
        )
    )


async def count(database: Database, choice: Choice) -> int:
    return await database.run(lambda connection: redrive.count(connection, choice))


def redriver(database: Database, *, most: int = 1_000) -> Redriver:
    return Redriver(database, chunks=CHUNKS, wake=lambda: None, most=most)


async def failed_job(platform: Platform, many: int, dead: int, **head: object) -> UUID:
    job_id = await platform.submit(many, chunk_size=many, **head)
    for claim in await claim_all(platform.database):
        rest = [Succeeded()] * (many - dead)
        await settle_as(platform.database, claim, *[DEAD] * dead, *rest)
    return job_id


async def test_a_redriven_input_keeps_its_history_and_dies_again_if_it_must(
    platform: Platform, database: Database
) -> None:
    job_id = await failed_job(platform, 3, 1)
    progress = await ask(database, InputChoice(job_id, DLQ, (0,)))
    assert (progress.matched, progress.redriven, progress.finished) == (1, 1, True)
    job = await platform.job(job_id)
    assert (job.status, job.dlq, job.finished_at, job.error_message) == ("RUNNING", 0, None, None)
    assert not await platform.rows("SELECT * FROM dead_letter")
    await platform.check_consistency()
    (claim,) = await claim_all(database)
    assert [(i.ordinal, i.attempts, i.generation) for i in claim.inputs] == [(0, 0, 1)]
    await settle_as(database, claim, Failed("Boom", "again"))
    await kill(platform, job_id)
    assert (await platform.job(job_id)).status == "FAILED"
    (now,) = await database.fetch(find_input(job.key, 0, owner_id=platform.owner_id))
    assert (now.state, now.generation, now.attempts, now.entry_id) == ("DLQ", 1, 2, None)
    history = await database.fetch(list_attempts(job_id, 0, most=100))
    assert [(row.generation, row.attempt, row.status) for row in history] == [
        (0, 1, "DLQ"), (1, 1, "RETRY_WAIT"), (1, 2, "DLQ"),
    ]  # fmt: skip
    assert all(row.started_at <= row.ended_at for row in history)
    await platform.check_consistency()


async def test_every_redrivable_status_goes_back_and_the_counters_follow(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(30)
    first, *_ = await claim_all(database, most=1)
    await settle_as(database, first, DEAD, Missing("gone"), *[Succeeded()] * 8)
    await control(platform, cancel_job, job_id)
    await sweep(database)
    counted = await count(database, InputChoice(job_id))
    progress = await ask(database, InputChoice(job_id))
    assert counted == progress.redriven == 22
    job = await platform.job(job_id)
    assert (job.status, job.succeeded, job.dlq, job.not_found, job.cancelled) == (
        "RUNNING", 8, 0, 0, 0,
    )  # fmt: skip
    await platform.check_consistency()
    for claim in await claim_all(database):
        await settle_as(database, claim, *[Succeeded()] * len(claim.inputs))
    assert (await platform.job(job_id)).status == "COMPLETED"
    await platform.check_consistency()


async def test_a_large_redrive_goes_on_in_batches_and_takes_each_input_once(
    platform: Platform, database: Database
) -> None:
    job_id = await failed_job(platform, 2_500, 2_400)
    progress = await ask(database, InputChoice(job_id, DLQ))
    assert (progress.redriven, progress.finished) == (1_000, False)
    # What dies again meanwhile lies behind the cursor.
    await kill(platform, job_id)
    await asyncio.gather(*(redriver(database, most=300).once() for _ in range(3)))
    while await redriver(database, most=300).once():
        pass
    (record,) = await database.fetch(find_redrive(progress.redrive_id, owner_id=None))
    assert (record.matched, record.redriven, record.stopped_reason) == (2_400, 2_400, None)
    assert record.finished_at is not None
    generations = await platform.rows(
        "SELECT generation, count(*) AS n FROM input GROUP BY 1 ORDER BY 1"
    )
    assert [tuple(row) for row in generations] == [(0, 100), (1, 2_400)]
    await platform.check_consistency()


async def test_an_input_whose_generations_are_used_up_stays_and_holds_up_no_other(
    platform: Platform, database: Database
) -> None:
    worn, other = [await failed_job(platform, 3, 3) for _ in range(2)]
    await platform.rows(
        "UPDATE input SET generation = 32767 WHERE job_id = :id AND ordinal = 1 RETURNING ordinal",
        id=worn,
    )
    progress = await ask(database, LetterFilter(owner_id=platform.owner_id))
    assert (progress.matched, progress.redriven, progress.finished) == (6, 5, True)
    assert await platform.statuses(worn) == {"PENDING": 2, "DLQ": 1}
    assert await platform.statuses(other) == {"PENDING": 3}
    progress = await ask(database, InputChoice(worn, DLQ, (1,)))
    assert (progress.matched, progress.redriven, progress.finished) == (1, 0, True)
    await platform.check_consistency()


async def test_letters_are_chosen_by_owner_kind_job_cause_and_time(
    platform: Platform, database: Database
) -> None:
    one, other = await failed_job(platform, 5, 2), await failed_job(platform, 5, 3)
    letters = await database.fetch(list_dead_letters(LetterFilter(), before=None, most=100))
    assert len(letters) == 5
    page = await database.fetch(
        list_dead_letters(
            LetterFilter(owner_id=platform.owner_id),
            before=(letters[1].died_at, letters[1].job_id, letters[1].ordinal),
            most=2,
        )
    )
    assert [(row.job_id, row.ordinal) for row in page] == [
        (row.job_id, row.ordinal) for row in letters[2:4]
    ]
    (cause,) = await database.fetch(list_causes(LetterFilter(), window=1_000, most=10))
    assert (cause.many, cause.jobs, cause.error_class) == (5, 2, "Bad")
    soon = letters[0].died_at + dt.timedelta(hours=1)
    for choice, many in (
        (LetterFilter(owner_id=UUID(int=7)), 0),
        (LetterFilter(kind="other"), 0),
        (LetterFilter(died_from=soon), 0),
        (LetterFilter(fingerprint="x"), 0),
        (LetterFilter(job_id=one, died_to=soon), 2),
        (LetterFilter(owner_id=platform.owner_id, fingerprint=cause.fingerprint), 3),
    ):
        assert await count(database, choice) == many
        progress = await ask(database, choice)
        assert (progress.redriven, progress.finished) == (many, True)
    assert {(await platform.job(job_id)).status for job_id in (one, other)} == {"RUNNING"}
    await platform.check_consistency()


async def test_what_dies_again_is_not_redriven_for_ever(
    platform: Platform, database: Database
) -> None:
    job_id = await failed_job(platform, 1_200, 1_200)
    progress = await ask(database, LetterFilter(kind=KIND))
    assert progress.redriven == 1_000
    await kill(platform, job_id)
    while await redriver(database).once():
        await kill(platform, job_id)
    job = await platform.job(job_id)
    assert (job.status, job.dlq) == ("FAILED", 1_200)
    generations = await platform.rows("SELECT DISTINCT generation FROM input")
    assert [row.generation for row in generations] == [1]


async def test_two_redrives_of_the_same_inputs_move_each_once(
    platform: Platform, database: Database
) -> None:
    job_id = await failed_job(platform, 50, 40)
    answers = await asyncio.gather(
        *(ask(database, InputChoice(job_id, DLQ)) for _ in range(3)),
        ask(database, LetterFilter(job_id=job_id)),
    )
    assert sum(answer.redriven for answer in answers) == 40
    rows = await platform.rows("SELECT max(generation) AS most FROM input")
    assert rows[0].most == 1
    await platform.check_consistency()


async def test_a_redrive_of_a_job_that_is_still_swept_waits_for_the_sweep(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(30)
    await control(platform, cancel_job, job_id)
    progress = await ask(database, InputChoice(job_id))
    assert (progress.deferred, progress.finished, progress.redriven) == (True, False, 0)
    assert await redriver(database).once() == 0
    await sweep(database)
    assert await redriver(database).once() == 1
    assert (await platform.job(job_id)).status == "RUNNING"
    assert await platform.statuses(job_id) == {"PENDING": 30}
    await platform.check_consistency()


async def test_a_round_ends_soon_however_many_redrives_are_open(
    platform: Platform, database: Database
) -> None:
    """Whoever stopped the process waited for all of them, and its loop seemed to be stuck."""
    for _ in range(25):
        job_id = await platform.submit(1)
        await control(platform, cancel_job, job_id)
        assert (await ask(database, InputChoice(job_id))).deferred
    one = redriver(database)
    assert await one.once(), "there are more, to be gone on with"
    assert await one.once() == 0, "all had their turn, and none came further"
    await sweep(database)
    moved = [await one.once() for _ in range(2)]
    assert moved[1] == 25
    assert await platform.rows("SELECT count(*) AS many FROM job WHERE status = 'RUNNING'") == [
        (25,)
    ]


async def test_a_cancel_during_a_redrive_ends_it(platform: Platform, database: Database) -> None:
    """The later decision wins: the next batch must not open the job again."""
    job_id = await failed_job(platform, 1_500, 1_500)
    progress = await ask(database, InputChoice(job_id, DLQ))
    assert not progress.finished
    await control(platform, cancel_job, job_id)
    await redriver(database).once()
    await sweep(database)
    (record,) = await database.fetch(find_redrive(progress.redrive_id, owner_id=None))
    assert record.redriven == 1_000
    assert "ended after" in record.stopped_reason
    job = await platform.job(job_id)
    assert (job.status, job.dlq, job.cancelled) == ("CANCELLED", 500, 1_000)
    await platform.check_consistency()


@pytest.mark.parametrize("seed", range(8))
async def test_a_redrive_and_a_cancel_at_once_come_one_after_the_other(
    platform: Platform, database: Database, seed: int
) -> None:
    job_id = await platform.submit(20)
    first, _ = await claim_all(database)
    await settle_as(database, first, *[DEAD] * 10)
    await at_once(
        seed,
        ask(database, InputChoice(job_id, DLQ)),
        control(platform, cancel_job, job_id),
        sweep(database),
    )
    await sweep(database)
    while await redriver(database).once():
        pass
    await platform.check_consistency()
    job = await platform.job(job_id)
    assert (job.status, job.cancelled, job.dlq) in (
        ("CANCELLED", 20, 0), ("CANCELLED", 10, 10), ("RUNNING", 10, 0),
    )  # fmt: skip


async def test_a_paused_jobs_inputs_are_redriven_into_their_place(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(20)
    first, other = await claim_all(database)
    await settle_as(database, first, *[DEAD] * 10)
    await settle_as(database, other, *[Succeeded()] * 9)
    await control(platform, pause_job, job_id)
    assert (await ask(database, InputChoice(job_id, DLQ))).redriven == 10
    assert (await platform.job(job_id)).status == "PAUSED"
    assert "HELD" in {entry.state for entry in await platform.entries(job_id)}
    await platform.check_consistency()
    await control(platform, resume_job, job_id)
    await sweep(database)
    assert len((await claim_all(database))[0].inputs) == 10
    await platform.check_consistency()


async def test_a_pause_waits_for_a_batch_and_then_holds_what_it_made(
    platform: Platform, database: Database
) -> None:
    job_id = await failed_job(platform, 10, 5)
    async with asyncio.TaskGroup() as group:
        async with open_unit(database) as unit:
            await redrive.request(
                unit, InputChoice(job_id), requested_by="t", owner_id=None, chunks=CHUNKS
            )
            pausing = group.create_task(control(platform, pause_job, job_id))
    assert (pausing.result().was, pausing.result().status) == ("RUNNING", "PAUSED")
    await sweep(database)
    assert {entry.state for entry in await platform.entries(job_id)} == {"HELD"}
    await platform.check_consistency()


async def test_an_expired_job_that_is_redriven_runs_without_its_old_time(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(3)
    await platform.rows(
        "UPDATE job SET status = 'EXPIRED', finished_at = now(), sweeping = true,"
        " expires_at = now() - interval '1 second' RETURNING id"
    )
    await sweep(database)
    await ask(database, InputChoice(job_id))
    assert (await platform.job(job_id)).expires_at is None
    assert len(await claim_all(database)) == 1


async def test_fail_fast_counts_new_deaths_only_after_a_redrive(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(30, fail_fast=True, tolerated=1)
    first, *_ = await claim_all(database)
    await settle_as(database, first, *[DEAD] * 4)
    await sweep(database)
    await ask(database, InputChoice(job_id, (InputStatus.CANCELLED,)))
    assert (await platform.job(job_id)).forgiven == 4
    (claim,) = await claim_all(database)
    await settle_as(database, claim, DEAD)
    assert (await platform.job(job_id)).status == "RUNNING"
    await control(platform, pause_job, job_id)
    assert (await control(platform, resume_job, job_id)).status == "RUNNING"
    await settle_as(database, claim, DEAD, DEAD)
    assert (await platform.job(job_id)).status == "FAILED"
    await platform.check_consistency()


async def test_what_lost_its_worker_is_redriven_alone(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(10, max_attempts=1)
    (claim,) = await claim_all(database)
    outcomes = [Lapsed("w") if n in (3, 4) else DEAD for n in range(10)]
    await settle_as(database, claim, *outcomes)
    await ask(database, InputChoice(job_id))
    sizes = [(e.first_ordinal, e.unfinished) for e in await platform.entries(job_id)]
    assert sizes == [(0, 3), (3, 1), (4, 1), (5, 5)]
    await platform.check_consistency()


async def test_far_apart_inputs_do_not_share_an_entry(
    platform: Platform, database: Database
) -> None:
    """A claim reads the whole range of its entry."""
    job_id = await platform.submit(3_000, chunk_size=1_000)
    for claim in await claim_all(database):
        outcomes = [DEAD if i.ordinal % 1_000 == 7 else Succeeded() for i in claim.inputs]
        await settle_as(database, claim, *outcomes)
    assert (await ask(database, InputChoice(job_id))).redriven == 3
    assert [e.unfinished for e in await platform.entries(job_id)] == [1, 1, 1]
