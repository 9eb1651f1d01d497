"""``HAULAGE_DATABASE_POOLER=transaction``: every transaction may meet another session."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.database import Database, copy_text
from infra.wakeup import Listener
from localstack.postgres import Cluster
from schema.errors import Unavailable
from tests.deliveries import open_delivery
from tests.platform import Platform, Recorder, settings_for
from tests.stubs.transaction_pooler import TransactionPooler


@pytest.fixture
async def pooler(postgres: Cluster, database_url: str) -> AsyncIterator[TransactionPooler]:
    socket_path = Path(postgres.socket_folder) / f".s.PGSQL.{postgres.port}"
    name = make_url(database_url).database
    assert name is not None
    async with TransactionPooler(str(socket_path), database=name) as pooler:
        yield pooler


@pytest.fixture
def pooled_url(pooler: TransactionPooler, database_url: str) -> str:
    url = make_url(database_url).set(port=pooler.port)
    return url.render_as_string(hide_password=False)


@pytest.fixture
async def pooled(pooled_url: str, database_url: str) -> AsyncIterator[Database]:
    settings = settings_for(
        pooled_url, database_direct_url=database_url, database_pooler="transaction"
    )
    async with Database.from_settings(settings, name="pooled") as database:
        yield database


async def test_a_job_runs_through_a_transaction_pooler(
    pooled: Database, pooled_url: str, database_url: str, pooler: TransactionPooler
) -> None:
    """The platform, the consumer and the services all speak through it; only LISTEN does not."""
    settings = settings_for(
        pooled_url, database_direct_url=database_url, database_pooler="transaction"
    )
    listener = Listener(settings, name="test")
    platform = Platform(pooled)
    await platform.prepare()
    async with asyncio.TaskGroup() as group:
        hearing = group.create_task(listener.run())
        async with (
            open_delivery("outbox", settings, pooled, listener) as delivery,
            delivery.dispatching(),
            delivery.consuming(Recorder(), concurrency=8),
        ):
            jobs = [await platform.submit(50, chunk_size=5) for _ in range(4)]
            for job_id in jobs:
                await platform.until(job_id, "COMPLETED")
        hearing.cancel()
    await platform.check_consistency()
    assert pooler.transactions > 40


async def numbers() -> AsyncIterator[bytes]:
    for begin in range(0, 2_500, 500):
        yield "".join(f"{n}\n" for n in range(begin, begin + 500)).encode()


async def test_every_way_of_using_the_database_works_through_a_pooler(pooled: Database) -> None:
    await pooled.fetch(text("CREATE TABLE mark (n int)"))

    async def unit(connection: AsyncConnection) -> int:
        await connection.execute(text("INSERT INTO mark VALUES (-1)"))
        await copy_text(connection, "mark", columns=["n"], blocks=numbers())
        return int((await connection.execute(text("SELECT count(*) FROM mark"))).scalar_one())

    assert await pooled.run(unit) == 2_501
    read = 0
    async with pooled.stream(text("SELECT n FROM mark")) as batches:
        async for batch in batches:
            read += len(batch)
    assert read == 2_501
    answers = await asyncio.gather(
        *(pooled.fetch(text("SELECT CAST(:n AS int) AS n").bindparams(n=n)) for n in range(50))
    )
    assert [rows[0].n for rows in answers] == list(range(50))
    await asyncio.gather(*(pooled.ping() for _ in range(10)))


async def test_sessions_behind_the_pooler_do_not_collect_prepared_statements(
    pooled: Database,
) -> None:
    """Nobody would ever close them: the next transaction is on another session."""
    for n in range(60):
        await pooled.fetch(text(f"SELECT {n}"))
    for _ in range(3):
        (row,) = await pooled.fetch(text("SELECT count(*) AS n FROM pg_prepared_statements"))
        assert row.n <= 1


async def test_without_the_setting_a_pooler_refuses_the_session_limits(pooled_url: str) -> None:
    async with Database.from_settings(settings_for(pooled_url), name="unset") as database:
        with pytest.raises(Unavailable, match="unsupported startup parameter"):
            await database.ping()
