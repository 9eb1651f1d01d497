"""Sessions at hand are the pool's: nobody waits for one that is idle, and there is none more."""

import asyncio
import random

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.pool import PoolProxiedConnection

from infra.database import Database
from infra.database_url import open_engine
from infra.retry import sqlstate
from infra.sessions import Sessions
from schema.errors import Unavailable
from tests.platform import Platform, eventually, settings_for

_NAME = "at hand"
_PID = text("SELECT pg_backend_pid() AS pid")
_GATE = text("SELECT pg_advisory_xact_lock_shared(7)")


def open_two(url: str, timeout_seconds: float = 10.0) -> Database:
    settings = settings_for(
        url, database_pool_size=2, database_pool_timeout_seconds=timeout_seconds
    )
    return Database.from_settings(settings, name=_NAME)


async def ask(connection: AsyncConnection) -> int:
    (row,) = await connection.execute(_PID)
    return int(row.pid)


async def waiting(platform: Platform) -> int:
    rows = await platform.rows(
        "SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    )
    return int(rows[0].n)


async def test_units_take_what_lies_at_hand_and_wait_for_nobody(
    database_url: str, platform: Platform
) -> None:
    both = asyncio.Barrier(2)

    async def unit(connection: AsyncConnection) -> int:
        pid = await ask(connection)
        await both.wait()  # as long as the other has none, neither ends
        return pid

    gate = await asyncpg.connect(database_url)
    async with open_two(database_url, timeout_seconds=0.2) as database:
        async with gate.transaction():
            await gate.execute("SELECT pg_advisory_xact_lock(7)")
            plain = [asyncio.create_task(database.fetch(_GATE)) for _ in range(2)]

            async def are_waiting() -> bool:
                return await waiting(platform) == 2

            await eventually(are_waiting)
        await asyncio.gather(*plain)
        pids = await asyncio.gather(database.run(unit), database.run(unit))
    await gate.close()
    assert len(set(pids)) == 2


async def test_who_waits_at_the_pool_gets_the_session_of_a_plain_statement(
    database_url: str, platform: Platform
) -> None:
    is_held, may_end = asyncio.Event(), asyncio.Event()

    async def hold(connection: AsyncConnection) -> None:
        await connection.execute(_PID)
        is_held.set()
        await may_end.wait()

    gate = await asyncpg.connect(database_url)
    async with open_two(database_url) as database:
        holder = asyncio.create_task(database.run(hold))
        await is_held.wait()
        async with gate.transaction():
            await gate.execute("SELECT pg_advisory_xact_lock(7)")
            plain = asyncio.create_task(database.fetch(_GATE))

            async def is_waiting() -> bool:
                return await waiting(platform) == 1

            await eventually(is_waiting)
            late = asyncio.create_task(database.run(ask))
            await asyncio.sleep(0)
            assert not late.done()
        await plain
        assert await late > 0
        may_end.set()
        await holder
    await gate.close()


async def test_of_two_that_are_given_back_at_once_none_is_kept_from_two_who_wait(
    database_url: str,
) -> None:
    engine = open_engine(database_url, pool_size=2, max_overflow=0, pool_timeout=5)
    sessions = Sessions(engine)

    async def wait_at_the_pool() -> PoolProxiedConnection:
        with sessions.waiting():
            return await engine.raw_connection()

    first, second = await sessions.take(), await sessions.take()
    assert sessions.are_used_up()
    waiting = [asyncio.create_task(wait_at_the_pool()) for _ in range(2)]
    for _ in range(10):
        await asyncio.sleep(0)
    sessions.give_back(first)
    sessions.give_back(second)
    for session in await asyncio.gather(*waiting):
        session.close()
    await engine.dispose()


async def test_who_waits_at_the_pool_is_served_however_many_statements_follow_each_other(
    database_url: str,
) -> None:
    served = asyncio.Event()
    asked = 0

    async def ask_on(database: Database) -> None:
        nonlocal asked
        while not served.is_set():
            await database.fetch(_PID)
            asked += 1
            assert asked < 1_000, "the unit waits for a pause that never comes"

    async with open_two(database_url) as database:
        loops = [asyncio.create_task(ask_on(database)) for _ in range(6)]
        while asked < 20:
            await asyncio.sleep(0)
        assert await database.run(ask) > 0
        served.set()
        await asyncio.gather(*loops)


async def do_one(database: Database, chance: random.Random) -> None:
    """Run a plain statement, a unit, or one that is refused or cancelled."""
    kind = chance.choice(["plain", "plain", "unit", "refused", "cancelled"])
    if kind == "plain":
        await database.fetch(_PID)
    elif kind == "unit":
        await database.run(ask)
    elif kind == "refused":
        with pytest.raises(IntegrityError) as refused:
            await database.fetch(text("INSERT INTO owner (id, name) VALUES (NULL, 'x')"))
        assert sqlstate(refused.value) == "23502"
    else:
        task = asyncio.create_task(database.fetch(_PID))
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})


@pytest.mark.parametrize("seed", range(4))
async def test_there_are_never_more_than_the_pool_may_have(
    database_url: str, platform: Platform, seed: int
) -> None:
    chance = random.Random(seed)

    async def number() -> int:
        rows = await platform.rows(
            "SELECT count(*) AS n FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE :name",
            name=f"%{_NAME}%",
        )
        return int(rows[0].n)

    async def is_within_bounds() -> bool:
        # The server of one that was given up may take a moment to end.
        return await number() <= 2

    async def none_is_left() -> bool:
        return await number() == 0

    async with open_two(database_url) as database:
        for _ in range(25):
            await asyncio.gather(*(do_one(database, chance) for _ in range(chance.randrange(1, 8))))
            await eventually(is_within_bounds)
        assert await number() > 0
    await eventually(none_is_left)


async def test_a_pool_of_one_serves_units_and_plain_statements_alike(database_url: str) -> None:
    settings = settings_for(database_url, database_pool_size=1, database_pool_timeout_seconds=5)

    async with Database.from_settings(settings, name=_NAME) as database:
        for _ in range(20):
            plain, of_unit = await asyncio.gather(database.fetch(_PID), database.run(ask))
            assert plain[0].pid == of_unit


async def test_a_session_that_ended_while_it_lay_at_hand_is_no_reason_to_fail(
    database_url: str, platform: Platform
) -> None:
    async with open_two(database_url) as database:
        (row,) = await database.fetch(_PID)
        await platform.rows("SELECT pg_terminate_backend(:pid, 5000)", pid=row.pid)

        async def is_replaced() -> bool:
            try:
                (now,) = await database.fetch(_PID)
            except Unavailable:
                return False  # the driver has not heard yet
            return bool(now.pid != row.pid)

        await eventually(is_replaced)
