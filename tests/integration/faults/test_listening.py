"""LISTEN and NOTIFY: a wake-up that is lost costs lateness, and a lost listener listens again."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.database import Database
from infra.retry import sleep_unless
from infra.settings import Settings
from infra.wakeup import CHANNEL, Listener, Notifier
from tests.integration.faults.stations import log_lines, named
from tests.platform import Platform, eventually, settings_for, stretch
from tests.stubs.loopback import LoopbackServer
from tests.stubs.tcp_proxy import TcpProxy


@asynccontextmanager
async def listening(
    settings: Settings, platform: Platform, *, heartbeat_seconds: float = 60.0
) -> AsyncIterator[asyncio.Event]:
    """The wake-ups of a listener that has begun to listen, the first of which was taken."""
    listener = Listener(settings, name="test", heartbeat_seconds=heartbeat_seconds)
    wake = listener.wakes()
    task = asyncio.create_task(listener.run())
    await eventually(lambda: _listens(platform))
    assert await woken(wake)
    try:
        yield wake
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def listeners(platform: Platform) -> list[int]:
    rows = await platform.rows(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'test listener' AND state = 'idle'"
    )
    return [row.pid for row in rows]


async def _listens(platform: Platform) -> bool:
    return bool(await listeners(platform))


async def woken(wake: asyncio.Event) -> bool:
    """Say whether a wake-up comes, and take it."""
    await sleep_unless(wake)(25)
    came = wake.is_set()
    wake.clear()
    return came


async def notify(platform: Platform) -> None:
    await platform.rows(f"SELECT pg_notify('{CHANNEL}', '')")


async def test_a_half_open_connection_is_found_out_and_replaced(
    proxied_url: str, platform: Platform, postgres_proxy: TcpProxy
) -> None:
    async with listening(settings_for(proxied_url), platform, heartbeat_seconds=0.5) as wake:
        assert postgres_proxy.accepted == 1
        postgres_proxy.leave_half_open()
        assert await woken(wake), "a new connection wakes whoever waits: it may have missed one"
        assert postgres_proxy.accepted > 1
        await notify(platform)
        assert await woken(wake)


async def test_a_listener_whose_session_is_ended_listens_again_at_once_and_polls(
    database_url: str, platform: Platform
) -> None:
    """Its heartbeat is a minute away: it must not be what notices."""
    async with listening(settings_for(database_url), platform) as wake:
        (pid,) = await listeners(platform)
        with log_lines() as lines:
            await platform.rows("SELECT pg_terminate_backend(:pid)", pid=pid)
            assert await woken(wake)
            await eventually(lambda: _listens(platform))
            await notify(platform)
            assert await woken(wake)
        assert len(named(lines, "listener.lost")) == 1
        assert pid not in await listeners(platform)


async def test_a_listener_that_cannot_connect_backs_off_and_says_so_once(
    proxied_url: str, platform: Platform, postgres_proxy: TcpProxy
) -> None:
    async with listening(settings_for(proxied_url), platform) as wake:
        with log_lines() as lines:
            postgres_proxy.hold()
            postgres_proxy.reset()
            await stretch(2)
            tries = postgres_proxy.accepted
            await postgres_proxy.outage()
            postgres_proxy.release()
            await postgres_proxy.listen()
            assert await woken(wake)
        assert tries <= 20
        assert len(named(lines, "listener.lost")) == 1


async def test_fifty_writers_share_wake_ups_that_carry_nothing(
    database: Database, database_url: str, platform: Platform
) -> None:
    heard: list[str] = []
    ear: asyncpg.Connection[Any] = await asyncpg.connect(database_url)
    await ear.add_listener(CHANNEL, lambda *arguments: heard.append(arguments[3]))
    notifier = Notifier(database, enabled=True)
    task = asyncio.create_task(notifier.run())

    async def write() -> None:
        await platform.submit(1)
        notifier.notify()

    for _ in range(50):
        notifier.notify()
    await eventually(lambda: bool(heard))
    assert len(heard) == 1
    await asyncio.gather(*(write() for _ in range(50)))
    await eventually(lambda: len(heard) > 1)
    task.cancel()
    await ear.close()
    assert len(heard) <= 51
    assert set(heard) == {""}


async def test_a_wake_up_that_is_seldom_goes_along_with_its_commit(
    database: Database, database_url: str, platform: Platform
) -> None:
    """And only then: Postgres takes commits with one of them one at a time."""
    heard: list[None] = []
    ear: asyncpg.Connection[Any] = await asyncpg.connect(database_url)
    await ear.add_listener(CHANNEL, lambda *_: heard.append(None))
    notifier = Notifier(database, enabled=True)
    along = [notifier.along() for _ in range(3)]
    assert along == [CHANNEL, None, None]
    for wake in (None, *along):
        await platform.submit(1, wake=wake)
    await eventually(lambda: bool(heard))
    await ear.execute("SELECT 1")
    assert len(heard) == 1
    await stretch(0.03)
    assert notifier.along() == CHANNEL
    await ear.close()


async def test_wake_ups_can_be_switched_off(
    database: Database, database_url: str, platform: Platform
) -> None:
    settings = settings_for(database_url, notify=False)
    notifier = Notifier(database, enabled=settings.notify)
    notifier.notify()
    assert not notifier._wanted.is_set()
    assert notifier.along() is None
    await Listener(settings, name="test").run()
    assert not await listeners(platform)


async def test_the_listener_has_a_connection_of_its_own_past_the_pool(
    database_url: str, platform: Platform
) -> None:
    """The pool is used up for as long as it listens; the pooler's address is not even reachable."""
    settings = settings_for(
        "postgresql://nobody@127.0.0.1:1/none", database_direct_url=database_url
    )
    full = settings_for(database_url, database_pool_size=1)
    async with (
        Database.from_settings(full, name="full") as pool,
        listening(settings, platform) as wake,
    ):

        async def hold(connection: AsyncConnection) -> bool:
            await connection.execute(text("SELECT 1"))
            await notify(platform)
            return await woken(wake)

        assert await pool.run(hold)


class _NoServer(LoopbackServer):
    """Lets everybody in and says that it is ready, but not which version it is."""

    def __init__(self) -> None:
        super().__init__()
        self.accepted = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        await reader.read(1)
        writer.write(b"R\0\0\0\x08\0\0\0\0" + b"Z\0\0\0\x05I")
        await reader.read()


async def levels_told(url: str, until: Callable[[], bool]) -> list[str]:
    """Run a listener until the condition holds; give the level of each line about its loss."""
    listener = Listener(settings_for(url), name="test")
    with log_lines() as lines:
        running = asyncio.create_task(listener.run())
        await eventually(lambda: until() or running.done(), timeout_seconds=30)
        assert not running.done()
        running.cancel()
        await asyncio.wait([running])
    return [line["log_level"] for line in named(lines, "listener.lost")]


# What the driver leaves behind of such a connection cannot even be collected without an error.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_listener_outlives_what_only_looks_like_postgres() -> None:
    async with _NoServer() as server:
        url = f"postgresql://u:p@127.0.0.1:{server.port}/d?sslmode=disable"
        assert await levels_told(url, lambda: server.accepted >= 3) == ["error"], "told once"
    gc.collect()
