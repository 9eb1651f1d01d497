"""What one job may not do to a duty's others: be beyond help, or have its row in other hands."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from dispatcher.bulkhead import Bulkhead
from dispatcher.drain import Drain
from dispatcher.expirer import Expirer
from dispatcher.finalizer import Finalizer
from dispatcher.maintenance import MaintenanceService
from dispatcher.pruner import Pruner, Retention
from dispatcher.reaper import Reaper
from dispatcher.redriver import Redriver
from infra.clients import Clients
from infra.database import Database
from infra.queue.dead import DeadLetterQueue
from infra.redrive_choice import InputChoice, written
from localstack.init.resources import Access
from schema.errors import Unavailable
from schema.ids import uuid7
from schema.outcome import Failed, Succeeded
from schema.statements.claim import claim_ready
from schema.statements.control import cancel_job
from schema.statements.redrive import insert_redrive
from tests.deliveries import aws_environment
from tests.platform import KIND, KINDS, Platform, settings_for
from tests.steps import claim_all, control, kill, lapse, open_unit, settle_as, sweeper
from tests.stubs.sqs import SqsStub

CHUNKS = {KIND: KINDS[KIND].chunk}


@asynccontextmanager
async def held(database: Database, *jobs: UUID) -> AsyncIterator[None]:
    """An operator looks at jobs, and leaves the transaction open."""
    async with open_unit(database) as connection:
        for job_id in jobs:
            await connection.execute(
                text("SELECT FROM job WHERE id = :id FOR UPDATE"), {"id": job_id}
            )
        yield


async def refuse(platform: Platform, table: str, operation: str, condition: str) -> None:
    """Let Postgres refuse one operation on the rows of a table for which a condition holds."""
    await platform.rows(
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RAISE EXCEPTION ''poison''; END'"
    )
    await platform.rows(
        f"CREATE TRIGGER refuse BEFORE {operation} ON {table} FOR EACH ROW WHEN ({condition})"
        " EXECUTE FUNCTION refuse()"
    )


def reaper(database: Database) -> Reaper:
    return Reaper(
        database, lease_seconds=30, backoffs={}, most=100, wake=lambda: None, tell=lambda: None
    )


def redriver(database: Database) -> Redriver:
    return Redriver(database, chunks=CHUNKS, wake=lambda: None, most=2)


async def idle(platform: Platform, *jobs: UUID) -> None:
    """Let work be over and done, and only the end of the jobs be missing."""
    for minute, job_id in enumerate(jobs):
        await platform.rows("DELETE FROM outbox WHERE job_id = :id RETURNING id", id=job_id)
        await platform.rows(
            "UPDATE input SET status = 'SUCCEEDED', entry_id = NULL WHERE job_id = :id RETURNING 1",
            id=job_id,
        )
        await platform.rows(
            "UPDATE job SET status = 'RUNNING', started_at = now(),"
            " requested_at = now() - interval '1 hour' + :minute * interval '1 minute'"
            " WHERE id = :id RETURNING id",
            id=job_id,
            minute=minute,
        )


async def test_a_job_whose_counters_are_off_stops_no_sweep_of_others(
    platform: Platform, database: Database
) -> None:
    poison, sound = await platform.submit(5), await platform.submit(5)
    await platform.rows("UPDATE job SET succeeded = 5 WHERE id = :id RETURNING id", id=poison)
    for job_id in (poison, sound):
        await control(platform, cancel_job, job_id)
    service = sweeper(database)
    with capture_logs() as lines:
        for _ in range(4):
            await service.once()
    assert await platform.statuses(sound) == {"CANCELLED": 5}
    events = [line["event"] for line in lines]
    assert (events.count("sweeper.failed"), events.count("sweeper.swept")) == (1, 1)
    await platform.rows("UPDATE job SET succeeded = 0 WHERE id = :id RETURNING id", id=poison)
    await service.once()
    assert await platform.statuses(poison) == {"CANCELLED": 5}


async def test_a_job_that_cannot_be_recounted_keeps_no_other_from_its_end(
    platform: Platform, database: Database
) -> None:
    poison, sound = await platform.submit(2), await platform.submit(1)
    await idle(platform, poison, sound)
    await platform.rows("UPDATE job SET total = 1 WHERE id = :id RETURNING id", id=poison)
    finalizer = Finalizer(database, most=1)
    with capture_logs() as lines:
        ended = [await finalizer.once() for _ in range(5)]
    assert (sum(ended), (await platform.job(sound)).status) == (1, "COMPLETED")
    events = sorted(line["event"] for line in lines)
    assert events == ["finalizer.failed", "finalizer.repaired"], "told once, not in every round"


async def test_a_redrive_that_cannot_go_on_holds_up_no_other(
    platform: Platform, database: Database
) -> None:
    stuck, other = await dead_job(platform), await dead_job(platform)
    await refuse(platform, "input", "UPDATE", f"NEW.job_id = '{stuck}'")
    await _ask(database, stuck, other)
    service = redriver(database)
    with capture_logs() as lines:
        for _ in range(3):
            await service.once()
    assert await platform.statuses(other) == {"PENDING": 1}
    assert await platform.statuses(stuck) == {"DLQ": 1}
    events = [line["event"] for line in lines]
    assert events == ["redriver.failed", "redriver.finished"]


async def dead_job(platform: Platform) -> UUID:
    job_id = await platform.submit(1)
    await kill(platform, job_id)
    return job_id


async def _ask(database: Database, *jobs: UUID) -> None:
    """Ask for redrives as the API does, for the redriver to begin."""
    for job_id in jobs:
        statement = insert_redrive(
            uuid7(),
            owner_id=None,
            requested_by="tester",
            source="job",
            filter=written(InputChoice(job_id)),
        )
        await database.fetch(statement)


async def test_a_sort_that_cannot_be_pruned_holds_up_no_other(
    platform: Platform, database: Database
) -> None:
    await platform.submit(1)
    (claim,) = await claim_all(database)
    await settle_as(database, claim, Failed("Boom", "x"))
    for claim in await claim_all(database):
        await settle_as(database, claim, Succeeded())
    await platform.rows("UPDATE attempt SET ended_at = now() - interval '9 days' RETURNING 1")
    await platform.rows(
        "INSERT INTO parked_message (queue, message_id, reason, body, attributes, resolution,"
        " resolved_at) VALUES ('q', 'm', 'r', 'b', '{}', 'dismissed', now() - interval '9 days')"
        " RETURNING id"
    )
    await refuse(platform, "attempt", "DELETE", "true")
    keep = Retention(jobs_days=0, attempts_days=1, parked_messages_days=1, redrives_days=1)
    service = Pruner(database, keep=keep, most=10)
    with capture_logs() as lines:
        assert await service.once() == 1
        assert await service.once() == 0
    assert not await platform.rows("SELECT id FROM parked_message")
    failed = [line for line in lines if line["event"] == "pruner.failed"]
    assert [line["records"] for line in failed] == ["attempts"]


async def test_a_dead_message_that_cannot_be_stored_holds_up_no_other(
    platform: Platform, database: Database, database_url: str
) -> None:
    await refuse(platform, "parked_message", "INSERT", "NEW.body = 'poison'")
    async with SqsStub() as stub:
        with aws_environment(Access(stub.endpoint_url)):
            async with Clients(settings_for(database_url)).sqs() as sqs:
                url = (await sqs.create_queue(QueueName="dlq"))["QueueUrl"]
                for body in ("one", "poison", "two"):
                    await sqs.send_message(QueueUrl=url, MessageBody=body)
                drain = Drain(database, DeadLetterQueue(sqs, queue_url=url), wake=lambda: None)
                with capture_logs() as lines:
                    while await drain.once():
                        pass
                assert sum(stub.queue(url).counts()) == 1, "only what is stored is deleted"
    stored = await platform.rows("SELECT body FROM parked_message ORDER BY body")
    assert [row.body for row in stored] == ["one", "two"]
    assert [line["event"] for line in lines].count("drain.failed") == 1


@dataclass
class Duty:
    """A duty, with one job after another on which it waits to be done."""

    service: MaintenanceService
    first: UUID
    second: UUID
    event: str | None

    async def is_done(self, platform: Platform, job_id: UUID) -> bool:
        return bool(await platform.rows(_DONE[self.service.name], id=job_id))


_DONE = {
    "reaper": "SELECT 1 FROM attempt WHERE job_id = :id",
    "sweeper": "SELECT 1 FROM input WHERE job_id = :id AND status = 'CANCELLED'",
    "finalizer": "SELECT 1 FROM job WHERE id = :id AND status = 'COMPLETED'",
    "expirer": "SELECT 1 FROM job WHERE id = :id AND status = 'EXPIRED'",
    "redriver": "SELECT 1 FROM input WHERE job_id = :id AND status = 'PENDING'",
}


async def _new_job(platform: Platform) -> UUID:
    return await platform.submit(1)


async def _duty(name: str, platform: Platform, database: Database) -> Duty:
    make = dead_job if name == "redriver" else _new_job
    first, second = await make(platform), await make(platform)
    match name:
        case "reaper":
            await database.fetch(claim_ready("gone", 30, kinds=[KIND], most=10))
            for job_id in (first, second):
                await lapse(platform, job_id)
            return Duty(reaper(database), first, second, "reaper.failed")
        case "sweeper":
            for job_id in (first, second):
                await control(platform, cancel_job, job_id)
            return Duty(sweeper(database), first, second, "sweeper.failed")
        case "finalizer":
            await idle(platform, first, second)
            return Duty(Finalizer(database, most=10), first, second, "finalizer.failed")
        case "expirer":
            await platform.rows("UPDATE job SET expires_at = now() RETURNING id")
            return Duty(Expirer(database, most=10, tell=lambda: None), first, second, None)
        case _:
            await _ask(database, first, second)
            return Duty(redriver(database), first, second, "redriver.failed")


@pytest.mark.parametrize("name", sorted(_DONE))
async def test_a_job_in_other_hands_holds_up_no_other(
    name: str, platform: Platform, database: Database
) -> None:
    duty = await _duty(name, platform, database)
    with capture_logs() as lines:
        async with held(database, duty.first):
            await duty.service.once()
            assert await duty.is_done(platform, duty.second)
            assert not await duty.is_done(platform, duty.first)
        told = [line["event"] for line in lines if line["event"].endswith(".failed")]
        assert told == ([duty.event] if duty.event else [])
        if name == "reaper":
            await lapse(platform, duty.first)
        await duty.service.once()
    assert await duty.is_done(platform, duty.first)


async def test_all_entries_of_a_job_in_other_hands_cost_a_round_one_wait(
    platform: Platform, database: Database
) -> None:
    locked, sound = await platform.submit(20, chunk_size=1), await platform.submit(1)
    await database.fetch(claim_ready("gone", 30, kinds=[KIND], most=100))
    await lapse(platform, locked)
    await lapse(platform, sound)
    service = reaper(database)
    with capture_logs() as lines:
        async with held(database, locked):
            await service.once()
    events = [line["event"] for line in lines]
    assert (events.count("reaper.failed"), events.count("reaper.repaired")) == (1, 1)


async def test_a_round_waits_less_for_each_further_row_in_other_hands(
    platform: Platform, database: Database
) -> None:
    jobs = [await platform.submit(1) for _ in range(4)]
    bulkhead = Bulkhead(database)
    waits: list[float] = []
    async with held(database, *jobs):
        for job_id in jobs:
            waits.append(bulkhead.lock_seconds)
            with pytest.raises(Unavailable, match="lock timeout") as raised:
                await bulkhead.fetch(
                    text("SELECT FROM job WHERE id = :id FOR UPDATE").bindparams(id=job_id)
                )
            assert not bulkhead.lets_through(raised.value)
    assert waits == [waits[0] / 2**number for number in range(4)]
    bulkhead.begin()
    assert bulkhead.lock_seconds == waits[0]


async def test_a_database_that_is_away_ends_the_round(database_url: str) -> None:
    hasty = settings_for(database_url, statement_timeout_seconds=0.05)
    async with Database.from_settings(hasty, name="hasty") as database:
        bulkhead = Bulkhead(database)
        lets_through = []
        for _ in range(2):
            with pytest.raises(Unavailable, match="statement timeout") as raised:
                await bulkhead.fetch(text("SELECT pg_sleep(30)"))
            lets_through.append(bulkhead.lets_through(raised.value))
    assert lets_through == [False, True], "one slow statement may be the job's own"
    assert bulkhead.lets_through(Unavailable("database is away: refused"))
