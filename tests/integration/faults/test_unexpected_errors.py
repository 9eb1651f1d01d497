"""An error that nobody foresaw ends neither its neighbours nor the process."""

import asyncio
import datetime as dt
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection
from structlog.testing import capture_logs

from dispatcher.finalizer import Finalizer
from dispatcher.maintenance import run_services
from dispatcher.reaper import Reaper
from dispatcher.resender import Resender
from infra.database import Database, copy_text
from infra.wakeup import Notifier
from schema.errors import Unavailable
from schema.statements.claim import claim_ready
from tests.platform import KIND, Platform, eventually, settings_for


async def test_a_copy_that_takes_too_long_is_a_database_that_is_away(
    database_url: str, platform: Platform
) -> None:
    await platform.rows("CREATE TABLE copied (n int)")
    await platform.rows(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_sleep(30); RETURN NEW; END'"
    )
    await platform.rows(
        "CREATE TRIGGER slow BEFORE INSERT ON copied FOR EACH ROW EXECUTE FUNCTION slow()"
    )

    async def one(row: bytes) -> AsyncIterator[bytes]:
        yield row

    async def unit(connection: AsyncConnection, row: bytes = b"1\n") -> None:
        await connection.execute(text("SELECT 1"))
        await copy_text(connection, "copied", columns=["n"], blocks=one(row))

    settings = settings_for(database_url, statement_timeout_seconds=0.2)
    async with Database.from_settings(settings, name="copy") as database:
        with pytest.raises(Unavailable, match="timeout"):
            await database.run(unit)
        with pytest.raises(Exception, match="int") as raised:
            await database.run(lambda connection: unit(connection, b"no number\n"))
        assert not isinstance(raised.value, Unavailable)
        await database.ping()


async def test_a_notifier_that_may_not_notify_goes_on_until_it_may(
    database_url: str, platform: Platform
) -> None:
    role = f"role_{platform.owner_id.hex}"
    await platform.rows(f"CREATE ROLE {role} LOGIN PASSWORD 'one'")
    await platform.rows("REVOKE EXECUTE ON FUNCTION pg_notify FROM PUBLIC")
    url = make_url(database_url).set(username=role, password="one")
    settings = settings_for(url.render_as_string(hide_password=False))
    async with Database.from_settings(settings, name="notifier") as database:
        notifier = Notifier(database, enabled=True)
        running = asyncio.create_task(notifier.run())
        with capture_logs() as lines:

            async def failed() -> bool:
                notifier.notify()
                return bool(lines)

            await eventually(failed)
            assert not running.done()
            await platform.rows(f"GRANT EXECUTE ON FUNCTION pg_notify TO {role}")
            notifier.notify()
            assert [line["event"] for line in lines] == ["notify.failed"]
        running.cancel()
        await asyncio.wait([running])
    await platform.rows(f"DROP OWNED BY {role}")
    await platform.rows(f"DROP ROLE {role}")


class Broken:
    """A duty that always fails, and for which there is always something to do."""

    name = "broken"

    def __init__(self) -> None:
        self.tries, self.woken = 0, asyncio.Event()

    async def once(self) -> int:
        self.tries += 1
        self.woken.set()
        raise KeyError("nobody foresaw this")


class Sound:
    name = "sound"

    def __init__(self, rounds: int, stop: asyncio.Event) -> None:
        self.left, self.stop = rounds, stop

    async def once(self) -> int:
        self.left -= 1
        if not self.left:
            self.stop.set()
        return 0


async def test_a_duty_that_fails_is_told_of_once_and_the_others_go_on() -> None:
    stop, turned = asyncio.Event(), set[str]()
    with capture_logs() as lines:
        async with asyncio.timeout(20):
            await run_services(
                [Broken(), Sound(20, stop)], interval_seconds=0.01, stop=stop, turned=turned.add
            )
    assert [line["event"] for line in lines] == ["maintenance.failed"]
    assert turned == {"broken", "sound"}


async def test_wake_ups_do_not_make_a_hot_loop_of_a_duty_that_fails() -> None:
    stop, broken = asyncio.Event(), Broken()
    async with asyncio.timeout(20):
        await run_services(
            [broken, Sound(20, stop)],
            interval_seconds=0.01,
            stop=stop,
            turned=lambda _: None,
            wakes={broken.name: broken.woken},
        )
    assert 0 < broken.tries <= 40, "about as often as the sound one, which had 20 rounds"


class Away:
    """A duty whose neighbour is away until the outage ends; it stops once it found it back."""

    def __init__(self, name: str, is_away: asyncio.Event, stop: asyncio.Event) -> None:
        self.name, self.tries, self._is_away, self._stop = name, 0, is_away, stop

    async def once(self) -> int:
        self.tries += 1
        if self._is_away.is_set():
            raise Unavailable("database is away: refused")
        self._stop.set()
        return 0


async def test_duties_back_off_while_a_neighbour_is_away_and_tell_of_it_once() -> None:
    stops = [asyncio.Event() for _ in range(3)]
    is_away, stop = asyncio.Event(), asyncio.Event()
    is_away.set()
    duties = [Away(f"duty {number}", is_away, each) for number, each in enumerate(stops)]
    turns = Counter[str]()
    with capture_logs() as lines:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(
                run_services(
                    duties,
                    interval_seconds=0.2,
                    stop=stop,
                    turned=lambda name: turns.update([name]),
                )
            )
            await eventually(lambda: min(duty.tries for duty in duties) >= 6)
            assert turns == {duty.name: 1 for duty in duties}, "begun, and no good round since"
            is_away.clear()
            for each in stops:
                await each.wait()
            await eventually(lambda: len(lines) >= 2)
            stop.set()
    assert [line["event"] for line in lines] == ["maintenance.away", "maintenance.recovered"]


async def test_a_purged_queue_is_one_line_for_each_job(
    platform: Platform, database: Database
) -> None:
    for _ in range(2):
        await platform.submit(30, chunk_size=10)
    jobs = {row.key for row in await platform.rows("SELECT key FROM job")}
    await platform.rows(
        "UPDATE outbox SET state = 'SENT', sent_at = now() - interval '1 hour' RETURNING id"
    )
    resender = Resender(database, after_seconds=60, most=100, wake=lambda: None)
    with capture_logs() as lines:
        assert await resender.once() == 6
    assert {line["job"] for line in lines} == jobs
    assert [(line["event"], line["entries"]) for line in lines] == [("resender.requeued", 3)] * 2


async def test_a_lease_that_cannot_be_repaired_does_not_hold_up_the_others(
    platform: Platform, database: Database
) -> None:
    poison, sound = await platform.submit(1), await platform.submit(1)
    await database.fetch(claim_ready("gone", 30, kinds=[KIND], most=10))
    await platform.rows("UPDATE outbox SET locked_until = now() - interval '1 s' RETURNING id")
    await platform.rows(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RAISE EXCEPTION ''poison''; END'"
    )
    await platform.rows(
        "CREATE TRIGGER refuse BEFORE UPDATE ON input FOR EACH ROW"
        f" WHEN (NEW.job_id = '{poison}') EXECUTE FUNCTION refuse()"
    )
    reaper = Reaper(
        database, lease_seconds=30, backoffs={}, most=10, wake=lambda: None, tell=lambda: None
    )
    with capture_logs() as lines:
        assert await reaper.once() == 2
    assert sorted(line["event"] for line in lines) == ["reaper.failed", "reaper.repaired"]
    assert (await platform.rows("SELECT attempts FROM input WHERE job_id = :id", id=sound))[0][0]


async def test_stranded_jobs_are_told_of_once_and_hide_no_other(
    platform: Platform, database: Database
) -> None:
    jobs = [await platform.submit(1) for _ in range(5)]
    await platform.rows("DELETE FROM outbox RETURNING id")
    old = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    await platform.rows(
        "UPDATE job SET requested_at = :old, status = 'RUNNING' RETURNING id", old=old
    )
    await platform.rows(
        "UPDATE input SET status = 'SUCCEEDED', entry_id = NULL WHERE job_id = :id RETURNING 1",
        id=max(jobs),
    )
    finalizer = Finalizer(database, most=2)
    with capture_logs() as lines:
        ended = [await finalizer.once() for _ in range(9)]
    assert sum(ended) == 1
    told = [line["job"] for line in lines if line["event"] == "finalizer.stranded"]
    stranded = await platform.rows("SELECT key FROM job WHERE id <> :id", id=max(jobs))
    assert sorted(told) == sorted(row.key for row in stranded)
