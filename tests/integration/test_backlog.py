"""What waits and what runs is measured truly, whatever else the outbox holds."""

import pytest

from infra.backlog import Work, measure
from infra.database import Database
from schema.statements.control import pause_job, resume_job
from schema.statements.relay import lock_ready, mark_sent
from tests.platform import KIND, Platform
from tests.steps import claim_all, control, lapse, sweep


async def pace(platform: Platform, kind: str, input_ms: float) -> None:
    await platform.rows(
        "INSERT INTO kind_pace (kind, input_ms) VALUES (:kind, :ms) RETURNING kind",
        kind=kind,
        ms=input_ms,
    )


async def age(platform: Platform, seconds: int) -> None:
    """Let every entry be so much older, whatever dates it."""
    await platform.rows(
        "UPDATE outbox SET available_at = available_at - age, turn_at = turn_at - age,"
        " created_at = created_at - age, locked_until = locked_until - age,"
        " sent_at = sent_at - age"
        " FROM (SELECT make_interval(secs => :seconds) AS age) AS a RETURNING id",
        seconds=seconds,
    )


async def test_an_empty_platform_has_no_backlog(database: Database) -> None:
    backlog = await measure(database)
    assert (backlog.total, backlog.kinds, backlog.busy_consumers) == (Work(), {}, 0)
    assert (backlog.runnable_seconds, backlog.unsent_seconds, backlog.is_capped) == (0, 0, False)
    assert backlog.seconds_per_consumer(4) == 0


async def test_counting_stops_at_its_limit_and_says_so(
    database: Database, platform: Platform
) -> None:
    await platform.submit(50)
    backlog = await measure(database, most=3)
    assert (backlog.total.ready_entries, backlog.is_capped) == (3, True)


async def test_what_is_scheduled_does_not_use_up_the_limit(
    database: Database, platform: Platform
) -> None:
    later = await platform.submit(50)
    await platform.rows(
        "UPDATE outbox SET available_at = now() + interval '1 hour', deferred = true"
        " WHERE job_id = :id RETURNING id",
        id=later,
    )
    await platform.submit(1)
    backlog = await measure(database, most=3)
    assert (backlog.total.ready_inputs, backlog.is_capped) == (1, False)


async def test_beyond_the_limit_the_oldest_is_still_seen(
    database: Database, platform: Platform
) -> None:
    waiting = await platform.submit(10)
    await platform.rows(
        "UPDATE outbox SET available_at = now() - interval '100 seconds' WHERE job_id = :id"
        " RETURNING id",
        id=waiting,
    )
    await platform.submit(50)
    # Rewritten, it stands behind the others in the table.
    await platform.rows(
        "UPDATE outbox SET priority = 4 WHERE job_id = :id RETURNING id", id=waiting
    )
    backlog = await measure(database, most=2)
    assert backlog.is_capped
    assert 100 <= backlog.runnable_seconds < 200


async def test_what_the_relay_puts_off_grows_older(database: Database, platform: Platform) -> None:
    job_id = await platform.submit(1)
    await platform.rows(
        "UPDATE outbox SET turn_at = now() - interval '100 seconds', relay_attempts = 3,"
        " available_at = now() + interval '30 seconds', deferred = true WHERE job_id = :id"
        " RETURNING id",
        id=job_id,
    )
    backlog = await measure(database)
    assert backlog.total.ready_entries == 1
    assert 100 <= backlog.unsent_seconds < 200
    assert 100 <= backlog.runnable_seconds < 200


async def test_an_event_that_waits_is_unsent_but_no_work(
    database: Database, platform: Platform
) -> None:
    await platform.rows(
        "INSERT INTO outbox (type, job_id, owner_id, kind, payload, available_at, correlation_id)"
        " VALUES ('event', gen_random_uuid(), :owner, :kind, '{}',"
        " now() - interval '50 seconds', 'c') RETURNING id",
        owner=platform.owner_id,
        kind=KIND,
    )
    backlog = await measure(database)
    assert (backlog.total.ready_entries, backlog.runnable_seconds) == (0, 0.0)
    assert backlog.unsent_seconds == 0
    assert 50 <= backlog.unsent_event_seconds < 150


async def test_a_flood_of_one_kind_hides_neither_others_nor_what_runs(
    database: Database, platform: Platform
) -> None:
    await platform.submit(50, kind="other")
    await platform.submit(30)
    await claim_all(database)
    await platform.submit(20, kind="small")
    await platform.submit(10)
    backlog = await measure(database, most=4)
    assert backlog.kinds == {
        "other": Work(4, 40, 0, None),
        "small": Work(2, 20, 0, None),
        KIND: Work(1, 10, 30, None),
    }
    assert backlog.total == Work(7, 70, 30, None)
    assert (backlog.is_capped, backlog.busy_consumers) == (True, 1)


async def test_what_is_due_but_not_let_in_yet_is_ready(
    database: Database, platform: Platform
) -> None:
    await platform.submit(30)
    await platform.rows(
        "UPDATE outbox SET deferred = true, available_at = now() - interval '100 seconds'"
        " RETURNING id"
    )
    backlog = await measure(database)
    assert backlog.total.ready_entries == 3
    assert 100 <= backlog.runnable_seconds < 200
    assert (await measure(database, most=3)).is_capped


async def test_a_lapsed_claim_is_ready_again_since_its_lease_ran_out(
    database: Database, platform: Platform
) -> None:
    """Its consumer is dead, and nobody repairs it: an autoscaler must not go to none."""
    job_id = await platform.submit(20)
    await claim_all(database)
    await age(platform, 7200)
    await lapse(platform, job_id)
    await platform.rows(
        "UPDATE outbox SET locked_until = now() - interval '100 seconds' RETURNING id"
    )
    backlog = await measure(database)
    assert backlog.total == Work(2, 20, 0, None)
    assert backlog.busy_consumers == 0
    assert 100 <= backlog.runnable_seconds < 200
    assert backlog.unsent_seconds == 0, "nothing waits for the relay"


async def test_how_long_work_takes_is_unknown_while_any_of_it_has_no_pace(
    database: Database, platform: Platform
) -> None:
    await pace(platform, KIND, 500)
    await platform.submit(20)
    assert (await measure(database)).total.work_seconds == 10
    await platform.submit(100, kind="new")
    backlog = await measure(database)
    assert backlog.total.work_seconds is None
    assert backlog.seconds_per_consumer(4) is None
    assert {kind: work.work_seconds for kind, work in backlog.kinds.items()} == {
        KIND: 10,
        "new": None,
    }


async def test_what_runs_takes_no_time_of_what_is_ready(
    database: Database, platform: Platform
) -> None:
    await platform.submit(20)
    await claim_all(database)
    backlog = await measure(database)
    assert backlog.total == Work(0, 0, 20, 0.0)
    assert backlog.seconds_per_consumer(4) == 0


async def test_a_resumed_job_waits_since_it_was_resumed(
    database: Database, platform: Platform
) -> None:
    job_id = await platform.submit(30)
    await control(platform, pause_job, job_id)
    await sweep(database)
    await age(platform, 3600)
    before = [entry.turn_at for entry in await platform.entries(job_id)]
    await control(platform, resume_job, job_id)
    await sweep(database)
    backlog = await measure(database)
    assert backlog.total.ready_entries == 3
    assert backlog.runnable_seconds < 600
    assert backlog.unsent_seconds < 600
    assert [entry.turn_at for entry in await platform.entries(job_id)] == before, "still its turn"


async def test_a_retry_that_is_not_due_when_its_job_is_resumed_still_waits(
    database: Database, platform: Platform
) -> None:
    job_id = await platform.submit(10)
    await platform.rows(
        "UPDATE outbox SET deferred = true, available_at = now() + interval '1 hour' RETURNING id"
    )
    (due,) = [entry.available_at for entry in await platform.entries(job_id)]
    await control(platform, pause_job, job_id)
    await sweep(database)
    await control(platform, resume_job, job_id)
    await sweep(database)
    assert [entry.available_at for entry in await platform.entries(job_id)] == [due]


@pytest.mark.parametrize("is_sent", [False, True], ids=["being sent", "sent"])
async def test_what_the_relay_has_in_hand_for_the_first_time_is_as_old_as_it_is_due(
    database: Database, platform: Platform, *, is_sent: bool
) -> None:
    """Its turn may be long past: it stays when a job is resumed."""
    await platform.submit(10)
    await platform.rows("UPDATE outbox SET turn_at = now() - interval '1 hour' RETURNING id")
    (row,) = await database.fetch(lock_ready("token", 30, kind=KIND, most=1))
    if is_sent:
        await database.fetch(mark_sent("token", [row.id]))
    backlog = await measure(database)
    assert backlog.total.ready_entries == 1
    assert backlog.runnable_seconds < 600
