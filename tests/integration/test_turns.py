"""Owners take turns, and within an owner jobs do, by priority: which entry is claimed next."""

import datetime as dt
from collections import Counter
from uuid import UUID

import pytest

from dispatcher.promoter import Promoter
from infra.database import Database
from schema.statements.claim import release_entries
from schema.statements.control import pause_job, resume_job
from tests.fairness import Claimer, owners
from tests.platform import Platform
from tests.steps import control, sweep

LARGE = 2_000


async def ago(platform: Platform, seconds: float) -> dt.datetime:
    """Give a time as the database tells it: a job scheduled for it is as if submitted then."""
    rows = await platform.rows(
        "SELECT now() - CAST(:seconds AS double precision) * interval '1 second' AS at",
        seconds=seconds,
    )
    at: dt.datetime = rows[0].at
    return at


@pytest.mark.parametrize("most", [1, 10])
async def test_one_input_of_another_owner_waits_for_one_entry_of_a_large_job_at_most(
    database: Database, most: int
) -> None:
    large, small = await owners(database, 2)
    await large.submit(LARGE, chunk_size=1)
    claimer = Claimer(database, most=most)
    for _ in range(5):
        assert len(await claimer.claim()) == most
    assert len(await claimer.before(await small.submit(1))) <= 1


async def test_every_owner_comes_once_before_any_comes_again(database: Database) -> None:
    everyone = await owners(database, 7)
    for owner in everyone:
        await owner.submit(20, chunk_size=1)
    claimer = Claimer(database)
    for _ in range(3):
        round_ = [claim.owner_id for _ in everyone for claim in await claimer.claim()]
        assert sorted(round_) == sorted(owner.owner_id for owner in everyone)


async def test_an_owner_who_comes_last_waits_for_one_entry_of_each_other(
    database: Database,
) -> None:
    *others, last = await owners(database, 20)
    for owner in others:
        await owner.submit(100, chunk_size=1)
    for most in (1, 3, 50):
        claimer = Claimer(database, most=most)
        await claimer.claim()
        assert len(await claimer.before(await last.submit(1))) <= len(others)


async def test_a_claim_that_is_larger_than_there_are_owners_is_shared_evenly(
    database: Database,
) -> None:
    everyone = await owners(database, 3)
    for owner in everyone:
        await owner.submit(100, chunk_size=1)
    claimer = Claimer(database, most=10)
    for _ in range(4):
        claims = await claimer.claim()
        assert sorted(Counter(claim.owner_id for claim in claims).values()) == [3, 3, 3]
        # One of each, then a second of each: what is claimed together starts in turn, too.
        assert len({claim.owner_id for claim in claims[:3]}) == 3


async def test_two_kinds_of_one_owner_are_two_flows_and_other_kinds_are_not_looked_at(
    database: Database,
) -> None:
    (owner,) = await owners(database, 1)
    one = await owner.submit(20, chunk_size=1)
    other = await owner.submit(20, chunk_size=1, kind="another")
    elsewhere = await owner.submit(20, chunk_size=1, kind="elsewhere")
    claimer = Claimer(database, kinds=("probe", "another"))
    jobs = Counter([claim.job_id for _ in range(10) for claim in await claimer.claim()])
    assert jobs == {one: 5, other: 5}
    assert {entry.state for entry in await owner.entries(elsewhere)} == {"PENDING"}


async def test_what_cannot_be_claimed_is_passed_over_in_the_same_claim(
    database: Database,
) -> None:
    """The sweeper has not come to the paused jobs yet."""
    everyone = await owners(database, 6)
    jobs = [await owner.submit(5, chunk_size=1) for owner in everyone]
    for owner, job_id in zip(everyone[:5], jobs[:5], strict=True):
        await control(owner, pause_job, job_id)
    claimer = Claimer(database)
    assert [claim.job_id for _ in range(5) for claim in await claimer.claim()] == [jobs[5]] * 5


async def test_within_an_owner_a_small_job_does_not_wait_for_a_large_one(
    database: Database, platform: Platform
) -> None:
    large = await platform.submit(LARGE, chunk_size=1)
    claimer = Claimer(database)
    for _ in range(100):
        await claimer.claim()
    for _ in range(10):
        small = await platform.submit(1)
        assert await claimer.before(small) == []
    assert [claim.job_id for claim in await claimer.claim()] == [large]


async def test_within_an_owner_a_large_job_is_owed_a_chunk_each_second_and_does_not_starve(
    database: Database, platform: Platform
) -> None:
    """Small jobs come every three seconds, and nobody claims for a minute and a half."""
    start = await ago(platform, 90)
    large = await platform.submit(LARGE, chunk_size=1, scheduled_for=start)
    small: list[UUID] = []
    for number in range(30):
        at = start + dt.timedelta(seconds=0.5 + 3 * number)
        small.append(await platform.submit(1, scheduled_for=at))
    claimer = Claimer(database)
    assert await claimer.before(small[0]) == [large]
    for job_id in small[1:]:
        assert await claimer.before(job_id) == [large] * 3


async def test_of_two_large_jobs_the_later_one_catches_up_and_then_they_alternate(
    database: Database, platform: Platform
) -> None:
    start = await ago(platform, 60)
    first = await platform.submit(LARGE, chunk_size=1, scheduled_for=start)
    claimer = Claimer(database)
    for _ in range(50):
        await claimer.claim()
    second = await platform.submit(LARGE, chunk_size=1, scheduled_for=start)
    jobs = [claim.job_id for _ in range(90) for claim in await claimer.claim()]
    assert jobs == [second] * 50 + [first, second] * 20


async def test_priority_decides_within_an_owner_and_takes_nothing_from_others(
    database: Database,
) -> None:
    urgent, other = await owners(database, 2)
    await urgent.submit(LARGE, chunk_size=1)
    modest = await other.submit(50, chunk_size=1, priority=0)
    claimer = Claimer(database)
    for _ in range(10):
        await claimer.claim()
    first = await urgent.submit(20, chunk_size=1, priority=9)
    jobs = [claim.job_id for _ in range(40) for claim in await claimer.claim()]
    assert Counter(jobs) == {first: 20, modest: 20}


async def test_what_is_due_comes_in_however_busy_the_claims_are(database: Database) -> None:
    busy, later = await owners(database, 2)
    await busy.submit(LARGE, chunk_size=1)
    job_id = await later.submit(1, scheduled_for=await ago(later, -3_600))
    (entry,) = await later.entries(job_id)
    assert entry.deferred
    claimer = Claimer(database)
    for _ in range(5):
        await claimer.claim()
    await later.rows("UPDATE outbox SET available_at = now() WHERE deferred RETURNING id")
    await claimer.claim()
    (entry,) = await later.entries(job_id)
    assert entry.deferred, "that no claim lets it in each time is what this is about"
    claimer.let_pass(0.25)
    assert len(await claimer.before(job_id)) <= 1


async def test_a_crowd_that_falls_due_at_once_is_let_in_before_it_is_claimed(
    database: Database,
) -> None:
    """A claim lets in 200 in the order in which they were due: behind 2,000 one waits long."""
    crowd, other = await owners(database, 2)
    later = await ago(crowd, -3_600)
    await crowd.submit(LARGE, chunk_size=1, scheduled_for=later)
    job_id = await other.submit(1, scheduled_for=later + dt.timedelta(seconds=1))
    await other.rows("UPDATE outbox SET available_at = available_at - interval '2 hours'")
    assert await Promoter(database, wake=lambda: None).once() == LARGE + 1
    assert len(await Claimer(database).before(job_id)) <= 1


async def test_a_job_that_became_due_while_it_was_paused_goes_on_when_it_is_resumed(
    database: Database, platform: Platform
) -> None:
    job_id = await platform.submit(30, scheduled_for=await ago(platform, -3_600))
    await control(platform, pause_job, job_id)
    await sweep(database)
    await platform.rows("UPDATE outbox SET available_at = now() RETURNING id")
    await control(platform, resume_job, job_id)
    await sweep(database)
    claimer = Claimer(database, most=10)
    assert len(await claimer.claim()) == 3


async def test_what_is_given_back_has_its_turn_first_and_not_before_its_delay(
    database: Database, platform: Platform
) -> None:
    await platform.submit(10, chunk_size=1)
    claimer = Claimer(database)
    (first,), (second,) = await claimer.claim(), await claimer.claim()
    await database.fetch(release_entries([first.entry_id], [first.epoch], 0))
    await database.fetch(release_entries([second.entry_id], [second.epoch], 3_600))
    claimed = [claim.entry_id for _ in range(20) for claim in await claimer.claim()]
    assert claimed[0] == first.entry_id
    assert len(claimed) == 9
    (left,) = await platform.rows("SELECT id, deferred FROM outbox WHERE state = 'PENDING'")
    assert tuple(left) == (second.entry_id, True)
