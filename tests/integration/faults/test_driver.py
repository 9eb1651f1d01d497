"""The driver and the pool: what a lost, cancelled, stale or read-only session must not do."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.database import Database
from infra.driver import driver_of, session_of
from infra.retry import sqlstate
from schema.errors import Unavailable
from schema.statements.bound import FOR_EVER, Bound
from tests.platform import Platform, eventually, settings_for
from tests.stubs.loopback import LoopbackServer
from tests.stubs.postgres_wire import is_commit, is_sync_after_execute
from tests.stubs.tcp_proxy import Cut, TcpProxy


async def open_transactions(platform: Platform) -> int:
    rows = await platform.rows(
        "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'"
    )
    return int(rows[0].n)


async def none_is_open(platform: Platform) -> bool:
    return await open_transactions(platform) == 0


async def test_a_unit_cancelled_at_any_moment_leaves_no_transaction_open(
    database_url: str, platform: Platform
) -> None:
    """Cancelled after so many turns of the loop: while connecting, at BEGIN, in a statement."""

    async def unit(connection: AsyncConnection) -> None:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS mark (n int)"))
        await connection.execute(text("SELECT pg_sleep(30)"))

    settings = settings_for(database_url, database_pool_size=1, database_pool_timeout_seconds=10)
    for turns in range(16):
        async with Database.from_settings(settings, name="cancelled") as database:
            if turns % 2:
                await database.ping()
            task = asyncio.create_task(database.run(unit))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [tuple(row) for row in await database.fetch(text("SELECT 1"))] == [(1,)]
            await eventually(lambda: none_is_open(platform))
    assert not await platform.rows("SELECT 1 WHERE to_regclass('mark') IS NOT NULL")


async def test_a_unit_cancelled_in_its_statement_gives_the_pool_a_fresh_session(
    database_url: str, platform: Platform
) -> None:
    async def unit(connection: AsyncConnection) -> None:
        await connection.execute(text("SELECT pg_advisory_xact_lock(1), pg_sleep(30)"))

    async def locked() -> bool:
        return bool(await platform.rows("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'"))

    async def unlocked() -> bool:
        return not await locked()

    settings = settings_for(database_url, database_pool_size=1)
    async with Database.from_settings(settings, name="cancelled") as database:
        task = asyncio.create_task(database.run(unit))
        await eventually(locked)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await database.ping()
        await eventually(unlocked)


@pytest.fixture
async def narrow(database_url: str) -> AsyncIterator[Database]:
    """A pool of one connection."""
    settings = settings_for(database_url, database_pool_size=1)
    async with Database.from_settings(settings, name="narrow") as database:
        yield database


@pytest.mark.parametrize("how", ["fetch", "run"])
async def test_a_statement_that_nobody_waits_for_any_more_ends_on_the_server_too(
    platform: Platform, narrow: Database, how: str
) -> None:
    """It went on for up to half a minute, held its locks, and was committed."""
    slow = text("SELECT pg_sleep(60)")

    async def unit(connection: AsyncConnection) -> None:
        await connection.execute(slow)

    async def is_over() -> bool:
        return not await platform.rows("SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'")

    asking = narrow.run(unit) if how == "run" else narrow.fetch(slow)
    with pytest.raises(Unavailable, match="did not answer within"):
        await narrow.answered_within(0.5, asking)
    await eventually(is_over, timeout_seconds=10)


_ASK = text("SELECT pg_backend_pid() AS pid")


async def _pid(connection: AsyncConnection) -> int:
    return int((await connection.execute(_ASK)).scalar_one())


async def _driver(connection: AsyncConnection) -> "asyncpg.Connection[Any]":
    return driver_of(session_of(connection))


async def test_a_session_that_ended_while_nobody_used_it_is_no_reason_to_fail(
    platform: Platform, narrow: Database
) -> None:
    async def fetched() -> int:
        return int((await narrow.fetch(_ASK))[0].pid)

    async def streamed() -> int:
        async with narrow.stream(_ASK) as batches:
            (batch,) = [each async for each in batches]
        return int(batch[0].pid)

    for again in (fetched, lambda: narrow.run(_pid), streamed):
        pid, driver = await narrow.run(_pid), await narrow.run(_driver)
        await platform.rows(f"SELECT pg_terminate_backend({pid}, 5000)")
        await eventually(driver.is_closed)
        assert await again() != pid


async def test_a_session_of_which_the_end_is_half_read_is_no_reason_to_fail(
    platform: Platform, narrow: Database
) -> None:
    """The driver has read why, and not yet that it is over: it can begin nothing."""
    for _ in range(30):
        pid = await narrow.run(_pid)
        ended = asyncio.create_task(platform.rows(f"SELECT pg_terminate_backend({pid}, 5000)"))
        while not ended.done():
            await asyncio.gather(narrow.run(_pid), return_exceptions=True)
        # Whatever the loop had read by then.
        assert await narrow.run(_pid) > 0
        assert (await narrow.fetch(_ASK))[0].pid > 0
        await ended


@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
async def test_a_commit_that_loses_a_race_is_run_again(
    platform: Platform, database: Database, sqlstate: str
) -> None:
    """A deferred trigger refuses the first two commits; sequences remember across rollbacks."""
    await database.run(
        lambda connection: _each(
            connection,
            "CREATE TABLE mark (n int)",
            "CREATE SEQUENCE refusals",
            f"""CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF nextval('refusals') <= 2 THEN
                    RAISE EXCEPTION 'scripted' USING ERRCODE = '{sqlstate}';
                END IF; RETURN NULL; END $$""",
            """CREATE CONSTRAINT TRIGGER refused AFTER INSERT ON mark
                DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()""",
        )
    )
    await database.run(lambda connection: _each(connection, "INSERT INTO mark VALUES (1)"))
    await platform.rows("SELECT setval('refusals', 1, false)")
    await database.fetch(text("INSERT INTO mark VALUES (2)"))
    assert [row.n for row in await platform.rows("SELECT n FROM mark ORDER BY n")] == [1, 2]


async def _each(connection: AsyncConnection, *statements: str) -> None:
    for statement in statements:
        await connection.execute(text(statement))


async def test_a_table_that_changes_under_a_prepared_statement_is_not_noticed(
    platform: Platform, database: Database
) -> None:
    await platform.rows("CREATE TABLE mark AS SELECT 1 AS n")
    statement = text("SELECT * FROM mark")

    async def unit(connection: AsyncConnection) -> list[Any]:
        return list((await connection.execute(statement)).all())

    assert [tuple(row) for row in await database.fetch(statement)] == [(1,)]
    await platform.rows("ALTER TABLE mark ADD COLUMN more text DEFAULT 'x'")
    assert [tuple(row) for row in await database.fetch(statement)] == [(1, "x")]
    await platform.rows("ALTER TABLE mark ALTER COLUMN n TYPE text")
    assert [tuple(row) for row in await database.run(unit)] == [("1", "x")]


async def test_a_database_that_comes_back_read_only_is_away_until_it_can_be_written(
    platform: Platform, database: Database, database_url: str
) -> None:
    """As after a failover: sessions stay with the server that has become a standby."""
    name = database_url.rsplit("/", 1)[-1]
    async with Database.from_settings(settings_for(database_url), name="failover") as survivor:
        await platform.rows(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        with pytest.raises(Unavailable, match="read-only"):
            await survivor.fetch(text("CREATE TABLE mark ()"))
        await platform.rows(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        await survivor.fetch(text("CREATE TABLE mark ()"))


@pytest.mark.parametrize("cut", Cut)
async def test_a_connection_lost_at_commit_is_away_and_the_pool_recovers(
    platform: Platform, proxied: Database, postgres_proxy: TcpProxy, cut: Cut
) -> None:
    await platform.rows("CREATE TABLE mark (n int)")
    await proxied.ping()
    postgres_proxy.reset_at(is_commit, cut)
    with pytest.raises(Unavailable):
        await proxied.run(lambda connection: _each(connection, "INSERT INTO mark VALUES (1)"))
    assert postgres_proxy.cut.is_set()
    postgres_proxy.reset_at(is_sync_after_execute(), cut)
    with pytest.raises(Unavailable):
        await proxied.fetch(text("INSERT INTO mark VALUES (2)"))
    stored = [row.n for row in await proxied.fetch(text("SELECT n FROM mark ORDER BY n"))]
    assert stored == ([] if cut is Cut.BEFORE else [1, 2])


@pytest.mark.parametrize("how", ["held", "half open"])
async def test_a_session_that_never_answers_is_given_up_and_replaced(
    proxied: Database, postgres_proxy: TcpProxy, how: str
) -> None:
    await proxied.ping()
    if how == "held":
        postgres_proxy.hold()
    else:
        postgres_proxy.leave_half_open()
    async with asyncio.timeout(60):
        with pytest.raises(Unavailable):
            await proxied.ping()
        postgres_proxy.release()
        await proxied.ping()


async def test_a_statement_that_takes_too_long_is_a_database_that_is_away(
    database_url: str,
) -> None:
    settings = settings_for(database_url, statement_timeout_seconds=0.1)
    async with Database.from_settings(settings, name="slow") as database:
        with pytest.raises(Unavailable, match="timeout"):
            await database.fetch(text("SELECT pg_sleep(30)"))
        await database.ping()


async def test_a_unit_that_idles_in_its_transaction_loses_it(
    database_url: str, platform: Platform
) -> None:
    settings = settings_for(database_url, idle_in_transaction_timeout_seconds=0.1)

    async def idle(connection: AsyncConnection) -> None:
        await connection.execute(text("CREATE TABLE mark ()"))
        await eventually(lambda: none_is_open(platform))
        await connection.execute(text("SELECT 1"))

    async with Database.from_settings(settings, name="idler") as database:
        with pytest.raises(Unavailable):
            await database.run(idle)
        await database.ping()
    assert not await platform.rows("SELECT 1 WHERE to_regclass('mark') IS NOT NULL")


@pytest.mark.parametrize("change", ["PASSWORD 'another'", "NOLOGIN"])
async def test_a_role_that_may_not_log_in_is_a_database_that_is_away(
    database_url: str, platform: Platform, change: str
) -> None:
    role = f"role_{platform.owner_id.hex}"
    await platform.rows(f"CREATE ROLE {role} LOGIN PASSWORD 'one'")
    url = make_url(database_url).set(username=role, password="one")
    settings = settings_for(url.render_as_string(hide_password=False))
    try:
        async with Database.from_settings(settings, name="rotated") as database:
            await database.ping()
            await database.close()
            await platform.rows(f"ALTER ROLE {role} {change}")
            with pytest.raises(Unavailable):
                await database.ping()
            await platform.rows(f"ALTER ROLE {role} LOGIN PASSWORD 'one'")
            await database.ping()
    finally:
        await platform.rows(f"DROP ROLE {role}")


async def test_a_session_that_ended_while_nobody_used_it_fails_nobody(
    database_url: str, platform: Platform
) -> None:
    async with Database.from_settings(settings_for(database_url), name="idle") as database:
        (own,) = await database.fetch(text("SELECT pg_backend_pid() AS pid"))
        await platform.rows(f"SELECT pg_terminate_backend({own.pid})")
        await eventually(lambda: _is_gone(platform, own.pid))
        assert [tuple(row) for row in await database.fetch(text("SELECT 1"))] == [(1,)]


async def _is_gone(platform: Platform, pid: int) -> bool:
    return not await platform.rows(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}")


_PLANNED_AT = """
CREATE FUNCTION pg_temp.planned_at() RETURNS double precision LANGUAGE plpgsql IMMUTABLE
AS 'BEGIN RETURN extract(epoch FROM clock_timestamp()); END'
"""


async def test_a_plan_is_kept_as_long_as_its_statement_allows_and_no_longer(
    database_url: str,
) -> None:
    settings = settings_for(database_url, database_pool_size=1)
    # Postgres works out what it believes never changes when it plans.
    asked = text("SELECT pg_temp.planned_at() AS at, CAST(:n AS int) AS n")
    async with Database.from_settings(settings, name="plans") as database:
        await database.fetch(text(_PLANNED_AT))

        async def planned_at(plan_seconds: float) -> float:
            (row,) = await database.fetch(Bound(asked, {"n": 1}, plan_seconds))
            return float(row.at)

        async def unit(connection: AsyncConnection) -> float:
            return float((await connection.execute(asked, {"n": 1})).one().at)

        for keep_seconds in (FOR_EVER, 3_600.0):
            kept = await planned_at(keep_seconds)
            assert await planned_at(0.0) > kept
            assert await database.run(unit) > kept
            assert await planned_at(keep_seconds) == kept
        for keep_seconds in (0.0, 1e-9):
            assert await planned_at(keep_seconds) < await planned_at(keep_seconds)
        # What was thrown away is made anew once, and kept.
        kept = await planned_at(FOR_EVER)
        assert await planned_at(FOR_EVER) == kept


async def test_a_pool_that_is_used_up_is_not_taken_for_a_postgres_that_is_silent(
    narrow: Database,
) -> None:
    """The operator would look for trouble there, and every session would be opened anew."""

    async def hold(connection: AsyncConnection) -> int:
        with pytest.raises(Unavailable, match="the pool is used up"):
            await narrow.answered_within(0.2, narrow.fetch(_ASK))
        return await _pid(connection)

    held = await narrow.run(hold)
    assert await narrow.run(_pid) == held
    (row,) = await narrow.fetch(_ASK)
    assert row.pid == held
    assert await narrow.answers()


class Silent(LoopbackServer):
    """Takes every connection, and says nothing."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()


async def test_a_postgres_that_does_not_let_anybody_in_is_silent_and_no_pool_is_used_up() -> None:
    async with Silent() as silent:
        url = f"postgresql://nobody@127.0.0.1:{silent.port}/none"
        settings = settings_for(url, database_pool_size=1)
        async with Database.from_settings(settings, name="silent") as database:
            with pytest.raises(Unavailable, match="did not answer"):
                await database.answered_within(0.2, database.ping())


async def test_what_is_refused_is_the_same_error_from_a_fetch_and_from_a_unit(
    database: Database,
) -> None:
    wrong = text("SELECT 1 / CAST(:n AS int)").bindparams(n=0)

    async def unit(connection: AsyncConnection) -> None:
        await connection.execute(wrong)

    for attempt in (database.fetch(wrong), database.run(unit)):
        with pytest.raises(DBAPIError, match="division by zero") as caught:
            await attempt
        assert sqlstate(caught.value) == "22012"
