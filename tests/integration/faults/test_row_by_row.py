"""A row that refuses every change costs its own job, whatever changes it together with others."""

import datetime as dt
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from dispatcher.expirer import Expirer
from dispatcher.pruner import Pruner, Retention
from dispatcher.resender import Resender
from infra.database import Database
from infra.queue.protocol import Claim, ClaimedInput
from infra.row_by_row import RowByRow
from infra.wakeup import Listener
from schema.errors import Unavailable
from schema.outcome import Failed, Outcome, Succeeded
from schema.statements.relay import lock_ready, promote_due
from tests.deliveries import Delivery
from tests.integration.faults.stations import log_lines, named, queue_url
from tests.integration.test_bulkhead import reaper, refuse
from tests.platform import KIND, Gated, Platform, Recorder, eventually, settings_for
from tests.steps import claim_all, lapse


@pytest.fixture
async def stranger(database: Database) -> Platform:
    """Another owner on the same platform."""
    platform = Platform(database)
    await platform.prepare()
    return platform


async def _refuse_entries(platform: Platform, job_id: UUID) -> None:
    await refuse(platform, "outbox", "UPDATE", f"OLD.job_id = '{job_id}'")


async def _mend(platform: Platform, table: str = "outbox") -> None:
    await platform.rows(f"DROP TRIGGER refuse ON {table}")


def _told(lines: list[Any]) -> list[tuple[str, str]]:
    return [(line["doing"], line["job_id"]) for line in named(lines, "row.passed_over")]


def _once_failing() -> Recorder:
    seen: set[tuple[UUID, int]] = set()

    def say(claim: Claim, input_: ClaimedInput) -> Outcome:
        key = claim.job_id, input_.ordinal
        if key in seen:
            return Succeeded()
        seen.add(key)
        return Failed("Boom", "once")

    return Recorder(say)


async def _deferred(platform: Platform, stranger: Platform) -> tuple[UUID, UUID]:
    """Give a job whose entry is due first and refuses every change, and another owner's."""
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=0.2)
    bad = await platform.submit(1, scheduled_for=soon)
    later = soon + dt.timedelta(seconds=0.1)
    sound = await stranger.submit(3, scheduled_for=later)
    await _refuse_entries(platform, bad)
    return bad, sound


async def test_a_due_entry_that_cannot_be_changed_holds_up_no_schedule_and_no_retry(
    delivery: Delivery, platform: Platform, stranger: Platform
) -> None:
    bad, sound = await _deferred(platform, stranger)
    with log_lines() as lines:
        async with delivery.dispatching(), delivery.consuming(_once_failing()):
            retried = await stranger.submit(3)
            for job_id in (sound, retried):
                await stranger.until(job_id, "COMPLETED", timeout_seconds=20)
    assert set(_told(lines)) == {("promote", str(bad))}
    assert not named(lines, "relay.failed")
    assert not named(lines, "maintenance.failed")
    assert not named(lines, "receive.failed")


async def test_claims_alone_get_past_a_due_entry_that_cannot_be_changed(
    database: Database, database_url: str, platform: Platform, stranger: Platform
) -> None:
    settings = settings_for(database_url)
    delivery = Delivery("outbox", settings, database, Listener(settings, name="test"))
    bad, sound = await _deferred(platform, stranger)
    with log_lines() as lines:
        async with delivery.consuming(_once_failing()):
            await stranger.until(sound, "COMPLETED", timeout_seconds=20)
    assert _told(lines) == [("promote", str(bad))]
    assert not named(lines, "receive.failed")


async def test_a_ready_entry_that_cannot_be_changed_holds_up_no_other(
    delivery: Delivery, platform: Platform, stranger: Platform
) -> None:
    bad = await platform.submit(1)
    await _refuse_entries(platform, bad)
    with log_lines() as lines:
        async with delivery.dispatching(), delivery.consuming(Recorder()):
            for owner in (stranger, platform):
                sound = await owner.submit(3)
                delivery.listener.wake()
                await owner.until(sound, "COMPLETED", timeout_seconds=20)
    assert not named(lines, "relay.failed")
    if delivery.mode == "sqs":
        assert _told(lines) == [("lock for sending", str(bad))]


async def test_an_entry_that_cannot_be_marked_as_sent_leaves_its_neighbours_marked(
    station: Delivery, platform: Platform, stranger: Platform
) -> None:
    bad, sound = await platform.submit(1), await stranger.submit(5, chunk_size=1)
    await refuse(platform, "outbox", "UPDATE", f"OLD.job_id = '{bad}' AND NEW.state = 'SENT'")
    with log_lines() as lines:
        assert (await station.relay().relay_once()).sent == 6
    assert {entry.state for entry in await platform.entries(sound)} == {"SENT"}
    assert _told(lines) == [("mark as sent", str(bad))]


async def test_an_event_that_cannot_be_changed_holds_up_no_other(
    station: Delivery, platform: Platform, stranger: Platform
) -> None:
    bad, sound = await platform.submit(1), await stranger.submit(1)
    for job_id in (bad, sound):
        await platform.rows(
            "INSERT INTO outbox (type, job_id, owner_id, kind, payload, correlation_id)"
            " SELECT 'event', id, owner_id, kind, '{}', 'c' FROM job WHERE id = :id RETURNING id",
            id=job_id,
        )
    await _refuse_entries(platform, bad)
    relay = station.event_relay(queue_url=queue_url(station))
    with log_lines() as lines:
        assert (await relay.relay_once()).sent == 1
        assert not (await relay.relay_once()).sent
    assert _told(lines) == [("lock for sending", str(bad))]


async def test_an_entry_in_hand_that_cannot_be_changed_costs_its_neighbour_no_lease(
    delivery: Delivery, platform: Platform, stranger: Platform
) -> None:
    runner = Gated()
    with log_lines() as lines:
        async with (
            delivery.dispatching(),
            delivery.consuming(runner, lease_seconds=1, concurrency=4),
        ):
            bad, sound = await platform.submit(1), await stranger.submit(1)
            delivery.listener.wake()

            async def both() -> bool:
                entries = [*await platform.entries(bad), *await platform.entries(sound)]
                return all(entry.state == "CLAIMED" for entry in entries)

            await eventually(both)
            await _refuse_entries(platform, bad)
            await eventually(lambda: bool(named(lines, "lease.lost")), timeout_seconds=20)
            runner.gate.set()
            await stranger.until(sound, "COMPLETED", timeout_seconds=20)
            await _mend(platform)
    assert {line["job"] for line in named(lines, "lease.lost")} == {(await platform.job(bad)).key}
    assert ("extend the lease", str(bad)) in _told(lines)
    (input_,) = await stranger.rows("SELECT attempts FROM input WHERE job_id = :id", id=sound)
    assert input_.attempts == 1


@dataclass
class _Round:
    """A duty, and what says of a job that the duty was done for it."""

    service: Any
    table: str
    done: str


async def _round(name: str, database: Database, platform: Platform, *jobs: UUID) -> _Round:
    match name:
        case "reaper":
            await claim_all(database)
            for job_id in jobs:
                await lapse(platform, job_id)
            done = "SELECT 1 FROM attempt WHERE job_id = :id"
            return _Round(reaper(database), "outbox", done)
        case "resender":
            await platform.rows("UPDATE outbox SET state = 'SENT', sent_at = now() RETURNING id")
            service = Resender(database, after_seconds=0, most=100, wake=lambda: None)
            done = "SELECT 1 FROM outbox WHERE job_id = :id AND resends = 1"
            return _Round(service, "outbox", done)
        case "expirer":
            await platform.rows("UPDATE job SET expires_at = now() RETURNING id")
            done = "SELECT 1 FROM job WHERE id = :id AND status = 'EXPIRED'"
            return _Round(Expirer(database, most=100, tell=lambda: None), "job", done)
        case _:
            await platform.rows("DELETE FROM outbox RETURNING id")
            await platform.rows(
                "UPDATE job SET status = 'CANCELLED', finished_at = now() - interval '9 days'"
                " RETURNING id"
            )
            keep = Retention(jobs_days=1, attempts_days=0, parked_messages_days=0, redrives_days=0)
            done = "SELECT 1 WHERE NOT EXISTS (SELECT FROM job WHERE id = CAST(:id AS uuid))"
            return _Round(Pruner(database, keep=keep, most=100), "job", done)


@pytest.mark.parametrize("name", ["reaper", "resender", "expirer", "pruner"])
async def test_a_duty_leaves_the_row_that_cannot_be_changed_and_tells_it_once(
    name: str, platform: Platform, stranger: Platform, database: Database
) -> None:
    bad, sound = await platform.submit(1), await stranger.submit(1)
    duty = await _round(name, database, platform, bad, sound)
    which = "OLD.job_id" if duty.table == "outbox" else "OLD.id"
    await refuse(platform, duty.table, "UPDATE", f"{which} = '{bad}'")
    with log_lines() as lines:
        for _ in range(2):
            await duty.service.once()
    assert await platform.rows(duty.done, id=sound)
    assert not await platform.rows(duty.done, id=bad)
    assert [job_id for _, job_id in _told(lines)] == [str(bad)]


async def test_a_row_at_fault_is_passed_over_for_a_minute_and_told_again_once_it_was_well(
    platform: Platform, database: Database
) -> None:
    now = 0.0
    bad, sound = await platform.submit(3, chunk_size=1), await platform.submit(1)
    rows = RowByRow(database, doing="promote", clock=lambda: now)

    async def promoted() -> int:
        await platform.rows("UPDATE outbox SET deferred = true WHERE NOT deferred")
        return len(await rows.fetch(promote_due()))

    await platform.rows("UPDATE outbox SET deferred = true")
    with log_lines() as lines:
        await refuse(platform, "outbox", "UPDATE", f"OLD.job_id = '{bad}' AND NOT NEW.deferred")
        assert await promoted() == 1
        assert rows.shunned() == {bad}
        now = 59.0
        assert await promoted() == 1
        now = 61.0
        assert await promoted() == 1
        assert len(_told(lines)) == 1
        await _mend(platform)
        now = 122.0
        assert await promoted() == 4
        await refuse(platform, "outbox", "UPDATE", f"OLD.job_id = '{bad}' AND NOT NEW.deferred")
        assert await promoted() == 1
        assert len(_told(lines)) == 2
    assert (await platform.entries(sound))[0].deferred is False


async def test_what_was_locked_before_the_database_went_away_is_still_sent(
    platform: Platform, stranger: Platform, database: Database
) -> None:
    """What a statement of halves has changed must be carried, whatever becomes of the next."""
    sound, bad = await platform.submit(1), await stranger.submit(1)
    await platform.rows("UPDATE outbox SET priority = 9 WHERE job_id = :id RETURNING 1", id=sound)
    rows = RowByRow(database, doing="lock")
    batch = lock_ready("t", 30, kind=KIND, most=10)
    await refuse(platform, "outbox", "UPDATE", f"OLD.job_id = '{bad}'")
    await platform.rows(
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN IF (SELECT count(*) FROM outbox WHERE locked_by IS NOT NULL) > 0"
        " THEN RAISE EXCEPTION ''gone'' USING ERRCODE = ''57P01'';"
        " ELSE RAISE EXCEPTION ''poison''; END IF; END'"
    )
    found = await rows.fetch(batch)
    assert [row.job_id for row in found] == [sound]
    with pytest.raises(Unavailable):
        await rows.fetch(batch)
