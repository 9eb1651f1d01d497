"""The relay between Postgres and SQS: late commits, crashes, stale locks, long backlogs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from dispatcher.sources import _Failing
from infra.database import Database
from schema.errors import Unavailable
from schema.statements.claim import claim_by_id
from schema.statements.relay import lock_ready, mark_sent, requeue_overdue
from tests.deliveries import Delivery
from tests.integration.faults.stations import (
    all_done,
    log_lines,
    named,
    queue_url,
    sqs_station,
    waiting,
)
from tests.platform import KIND, Platform, Recorder, eventually, stretch
from tests.steps import open_unit
from tests.stubs.postgres_wire import is_sync_after_execute
from tests.stubs.sqs import BlackHole, Call, DuplicateMessages, Refuse, Slow, SqsStub
from tests.stubs.tcp_proxy import Cut, TcpProxy


async def test_an_entry_that_commits_after_a_later_one_was_relayed_is_relayed(
    station: Delivery, platform: Platform, database: Database
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(connection: AsyncConnection) -> int:
        row = await connection.execute(
            text(
                "INSERT INTO outbox (type, job_id, owner_id, kind, first_ordinal, last_ordinal,"
                " unfinished, correlation_id) SELECT type, job_id, owner_id, kind, first_ordinal,"
                " last_ordinal, unfinished, 'late' FROM outbox LIMIT 1 RETURNING id"
            )
        )
        begun.set()
        await go_on.wait()
        return int(row.scalar_one())

    await platform.submit(1)
    writing = asyncio.create_task(database.run(slow))
    await begun.wait()
    await platform.submit(1)
    assert (await station.relay().relay_once()).sent == 2
    go_on.set()
    late = await writing
    report = await station.relay().relay_once()
    assert report.entry_ids == [late]
    newest = await platform.rows("SELECT max(id) AS id FROM outbox")
    assert newest[0].id > late


async def test_a_crash_between_sending_and_writing_down_sends_again_and_runs_once(
    stub: SqsStub, database: Database, proxied: Database, platform: Platform,
    postgres_proxy: TcpProxy, database_url: str,
) -> None:  # fmt: skip
    async with sqs_station(stub, database, database_url, relay_lock_seconds=1) as station:
        job_id = await platform.submit(4, chunk_size=2)
        crashing = replace(station, database=proxied).relay("crashing")
        at = is_sync_after_execute()
        stub.faults.hook = lambda _call: postgres_proxy.reset_at(at, Cut.BEFORE)
        with pytest.raises(Unavailable):
            await crashing.relay_once()
        stub.faults.clear()
        assert waiting(stub, station) == 2
        assert {entry.state for entry in await platform.entries(job_id)} == {"PENDING"}
        recorder = Recorder()
        async with station.dispatching():
            await eventually(lambda: waiting(stub, station) == 4)
            async with station.consuming(recorder):
                await platform.until(job_id, "COMPLETED")
                await eventually(lambda: waiting(stub, station) == 0)
    assert len(recorder.ran) == 4
    await platform.check_consistency()


async def test_what_was_sent_is_told_under_the_key_of_its_job(
    station: Delivery, platform: Platform
) -> None:
    job_id = await platform.submit(4, chunk_size=2)
    (job,) = await platform.rows("SELECT key FROM job WHERE id = :id", id=job_id)
    with log_lines() as lines:
        await station.relay().relay_once()
    told = [(line["event"], line["job"], line["entries"]) for line in lines]
    assert told == [("relay.sent", job.key, 2)]


async def _events(platform: Platform, many: int) -> None:
    await platform.rows(
        "INSERT INTO outbox (type, job_id, owner_id, kind, payload, correlation_id)"
        " SELECT 'event', id, owner_id, kind, '{}', 'c' FROM job, generate_series(1, :many)"
        " RETURNING id",
        many=many,
    )


@asynccontextmanager
async def _relaying_events(station: Delivery) -> AsyncIterator[str]:
    """Relay events to a queue of their own inside the block; gives its URL."""
    assert station.sqs is not None
    url = (await station.sqs.create_queue(QueueName=f"events-{uuid4().hex}"))["QueueUrl"]
    relay = station.event_relay(queue_url=url)
    task = asyncio.create_task(relay.run(asyncio.Event()))
    yield url
    task.cancel()
    await asyncio.wait([task])


async def test_a_silent_queue_of_events_holds_up_no_input(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    """A call for events waits for its answer while a window of inputs is filled again and again."""
    calls: list[Call] = []

    def silent(call: Call) -> BlackHole | None:
        if call.action != "SendMessageBatch" or call.parameters["QueueUrl"] != url:
            return None
        calls.append(call)
        return BlackHole()

    small = replace(station, settings=station.settings.model_copy(update={"relay_window": 10}))
    job_id = await platform.submit(100, chunk_size=1)
    await _events(platform, 1)
    async with _relaying_events(station) as url:
        stub.faults.hook = silent
        station.listener.wake()
        await eventually(lambda: len(calls) == 1)
        async with small.dispatching(), station.consuming(Recorder()):
            await platform.until(job_id, "COMPLETED")
        assert len(calls) == 1, "it is the first that still waits"
    left = await platform.rows("SELECT type FROM outbox")
    assert [row.type for row in left] == ["event"]


async def test_a_queue_that_refuses_is_named_and_the_other_one_is_not(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    job_id = await platform.submit(20, chunk_size=1)
    await _events(platform, 1)
    with log_lines() as lines:
        async with _relaying_events(station) as url:
            stub.faults.hook = lambda call: (
                Refuse("ServiceUnavailable", 503)
                if call.action == "SendMessageBatch" and call.parameters["QueueUrl"] == url
                else None
            )
            station.listener.wake()
            async with station.dispatching(), station.consuming(Recorder()):
                await platform.until(job_id, "COMPLETED")
                await eventually(lambda: bool(named(lines, "relay.away")))
    assert {line["queue"] for line in named(lines, "relay.away")} == {"event"}
    assert {line["queue"] for line in named(lines, "relay.sent")} == {"inputs"}


async def test_messages_that_sqs_doubles_run_once(
    station: Delivery, stub: SqsStub, platform: Platform
) -> None:
    stub.faults.always("SendMessageBatch", DuplicateMessages())
    one, two = Recorder(), Recorder()
    async with station.dispatching(), station.consuming(one), station.consuming(two, worker="b"):
        job_id = await platform.submit(40, chunk_size=2)
        station.listener.wake()
        await platform.until(job_id, "COMPLETED")
        await eventually(lambda: waiting(stub, station) == 0)
    assert len(one.ran) + len(two.ran) == 40
    assert not await platform.rows("SELECT 1 FROM attempt")


async def test_a_lock_that_was_outlived_marks_nothing(
    station: Delivery, stub: SqsStub, platform: Platform, database: Database
) -> None:
    """The first relay's send takes longer than its lock; a second one takes over meanwhile."""
    job_id = await platform.submit(1)
    slow = lock_ready("slow", 0.001, kind=KIND, most=10)
    (row,) = await database.fetch(slow)
    (again,) = await _until_locked(database)
    assert again.id == row.id
    assert not await database.fetch(mark_sent("slow", [row.id]))
    (entry,) = await platform.entries(job_id)
    assert (entry.state, entry.locked_by) == ("PENDING", "second")
    assert await database.fetch(mark_sent("second", [row.id]))


async def _until_locked(database: Database) -> Any:
    found: Any = ()
    while not found:
        found = await database.fetch(lock_ready("second", 60, kind=KIND, most=10))
    return found


async def test_a_consumer_may_claim_before_the_relay_has_written_down(
    station: Delivery, stub: SqsStub, platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(1)
    stub.faults.next("SendMessageBatch", Slow(1.0))
    relaying = asyncio.create_task(station.relay().relay_once())
    claims = await station.queue("w").claim(10, asyncio.Event())
    assert len(claims) == 1
    await all_done(relaying)
    (entry,) = await platform.entries(job_id)
    assert (entry.state, entry.locked_by) == ("CLAIMED", "w")


async def test_a_batch_of_forty_thousand_entries_is_one_parameter(
    platform: Platform, database: Database
) -> None:
    """Postgres counts parameters in 16 bits: 32,767 of them would already be too many."""
    job_id = await platform.submit(40_000, chunk_size=20_000)
    rows = await database.fetch(lock_ready("t", 60, kind=KIND, most=40_000))
    ids = [row.id for row in rows]
    assert len(ids) == 2
    nobodys = list(range(1_000_000, 1_040_000))
    assert len(await database.fetch(mark_sent("t", ids + nobodys))) == 2
    claimed = await database.fetch(claim_by_id("w", 60, ids + nobodys))
    assert [len(row.ordinals) for row in claimed] == [20_000, 20_000]
    assert (await platform.statuses(job_id)) == {"RUNNING": 40_000}


@pytest.mark.parametrize("code", ["57014", "53200"])
@pytest.mark.parametrize("bad", ["aaa", "zzz"])
async def test_a_kind_that_cannot_be_locked_in_time_keeps_no_other_from_being_sent(
    station: Delivery, platform: Platform, bad: str, code: str
) -> None:
    """What was locked of the kinds before it waited for its lock to end, and others for ever."""
    good = await platform.submit(1, kind="mmm")
    await platform.submit(1, kind=bad)
    await platform.rows(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
        f" 'BEGIN RAISE EXCEPTION ''it is slow'' USING ERRCODE = ''{code}''; END'"
    )
    await platform.rows(
        "CREATE TRIGGER slow BEFORE UPDATE ON outbox FOR EACH ROW "
        f" WHEN (OLD.kind = '{bad}')"
        " EXECUTE FUNCTION slow()"
    )

    async def is_sent() -> bool:
        return [entry.state for entry in await platform.entries(good)] == ["SENT"]

    with log_lines() as lines:
        async with station.dispatching():
            await eventually(is_sent)
            await eventually(lambda: bool(named(lines, "relay.not_locked")))
    (told,) = named(lines, "relay.not_locked")
    assert told["kind"] == bad


@pytest.mark.parametrize("is_one_failing", [False, True])
async def test_where_no_kind_can_be_locked_none_rests(
    station: Delivery, platform: Platform, database: Database, is_one_failing: bool
) -> None:
    """Somebody alters a table: that is no kind's trouble, and all are sent once it is over."""
    jobs = [await platform.submit(1, kind=kind) for kind in ("aaa", "zzz")]

    async def are_sent() -> bool:
        entries = [entry for job in jobs for entry in await platform.entries(job)]
        return {entry.state for entry in entries} == {"SENT"}

    async with Database.from_settings(
        station.settings.model_copy(update={"statement_timeout_seconds": 0.2}), name="hasty"
    ) as hasty:
        with log_lines() as lines:
            async with open_unit(database) as connection:
                await connection.execute(text("LOCK TABLE job IN ACCESS EXCLUSIVE MODE"))
                stop, relay = asyncio.Event(), replace(station, database=hasty).relay()
                if is_one_failing:
                    relay._source._failing["zzz"] = _Failing(0.0, 1.0)  # type: ignore[attr-defined]
                async with asyncio.TaskGroup() as group:
                    group.create_task(relay.run(stop))
                    await eventually(lambda: bool(named(lines, "relay.away")))
                    await connection.rollback()
                    await eventually(are_sent)
                    stop.set()
                    station.listener.wake()
    assert not named(lines, "relay.not_locked")


async def test_an_old_snapshot_costs_no_more_updates_and_nobody_waits_for_it(
    station: Delivery, platform: Platform, database: Database
) -> None:
    """Three updates of an entry and one of an input, as without it: nothing churns."""
    seen, go_on = asyncio.Event(), asyncio.Event()

    async def look(connection: AsyncConnection) -> None:
        await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        await connection.execute(text("SELECT count(*) FROM outbox"))
        # Somebody else's session: ours would be ended for idling inside a transaction.
        await connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        seen.set()
        await go_on.wait()

    looking = asyncio.create_task(database.run(look))
    await seen.wait()
    async with station.dispatching(), station.consuming(Recorder()):
        job_id = await platform.submit(200, chunk_size=4)
        station.listener.wake()
        await platform.until(job_id, "COMPLETED")
    await eventually(lambda: _counted(platform))
    rows = await platform.rows(
        "SELECT relname, n_tup_upd AS n FROM pg_stat_user_tables"
        " WHERE relname IN ('outbox', 'input')"
    )
    updates = {row.relname: row.n for row in rows}
    go_on.set()
    await looking
    assert updates["input"] == 200
    assert updates["outbox"] <= 50 * 4, "lock, mark, claim, and settling in two parts at most"


@pytest.mark.parametrize("of", ["inputs", "event"])
async def test_an_entry_in_other_hands_is_looked_for_ever_more_rarely_and_sent_once_it_is_let_go(
    station: Delivery, stub: SqsStub, platform: Platform, database: Database, of: str
) -> None:
    """It is ready all the time, and the relay may not have it: that is no reason to spin."""
    await platform.submit(1)
    await _events(platform, 1)
    await platform.rows("DELETE FROM outbox WHERE type <> :of RETURNING id", of=of)
    rounds: list[None] = []
    settings: dict[str, Any] = {"turned": lambda: rounds.append(None), "poll_floor_seconds": 60}
    if of == "inputs":
        relay = station.relay(**settings)
    else:
        relay = station.event_relay(queue_url=queue_url(station), **settings)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        async with open_unit(database) as connection:
            await connection.execute(text("SELECT FROM outbox FOR UPDATE"))
            group.create_task(relay.run(stop))
            await eventually(lambda: bool(rounds))
            await stretch(0.7)
            assert len(rounds) <= 8, "10 ms, 20, 40, …: not seventy times 10 ms"
        station.listener.wake()
        await eventually(lambda: waiting(stub, station) == 1)
        stop.set()
        station.listener.wake()


async def _counted(platform: Platform) -> bool:
    """Sessions report what they did when they are idle for a while."""
    await platform.rows("SELECT pg_stat_force_next_flush()")
    rows = await platform.rows(
        "SELECT n_tup_upd AS n FROM pg_stat_user_tables WHERE relname = 'input'"
    )
    return bool(rows[0].n >= 200)


async def test_two_resenders_under_load_share_the_rows_without_waiting(
    platform: Platform, database: Database
) -> None:
    await platform.submit(1_000, chunk_size=1)
    ids = [r.id for r in await database.fetch(lock_ready("t", 60, kind=KIND, most=1_000))]
    await database.fetch(mark_sent("t", ids))
    statement = requeue_overdue(0, most=100)
    found = await asyncio.gather(*(database.fetch(statement) for _ in range(5)))
    taken = [row.id for rows in found for row in rows]
    assert len(taken) == len(set(taken))
    assert taken


async def test_the_relay_looks_for_a_database_that_was_away_by_no_backoff_of_sqs(
    stub: SqsStub, database: Database, proxied: Database, platform: Platform,
    postgres_proxy: TcpProxy, database_url: str,
) -> None:  # fmt: skip
    async with sqs_station(stub, database, database_url) as station:
        relay = replace(station, database=proxied).relay(
            relay_backoff_base_seconds=3_600.0, relay_backoff_cap_seconds=36_000.0
        )
        stop = asyncio.Event()
        await postgres_proxy.outage()
        with log_lines() as lines:
            async with asyncio.timeout(30), asyncio.TaskGroup() as group:
                group.create_task(relay.run(stop))
                await eventually(lambda: bool(named(lines, "relay.away")))
                await platform.submit(1)
                await postgres_proxy.listen()
                await eventually(lambda: waiting(stub, station) == 1)
                stop.set()
    assert [line["after_failures"] for line in named(lines, "relay.recovered")]
