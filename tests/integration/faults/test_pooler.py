"""``HAULAGE_DATABASE_POOLER=transaction``: every transaction may meet another session."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection

from consumer.processors.export_source import ExportSource
from infra.database import Database, copy_text
from infra.migrate import LOCK_TIMEOUT_SECONDS
from infra.wakeup import Listener
from localstack.postgres import Cluster
from schema.errors import Unavailable
from tests.databases import downgrade
from tests.deliveries import open_delivery
from tests.platform import Platform, Recorder, settings_for
from tests.stubs.transaction_pooler import TransactionPooler

_EXPORT_SQL = "SELECT CAST(:index_key AS text), CAST(:effective_date AS date), :asof_indicator"
CHECKOUT = Path(__file__).resolve().parent.parent.parent.parent


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


async def test_the_source_of_exports_has_a_pooler_of_its_own_or_none(
    pooled_url: str, database_url: str
) -> None:
    directly = settings_for(database_url, export_database_pooler="transaction")
    through = settings_for(pooled_url, database_pooler="transaction", export_database_pooler="none")
    for settings, url in (directly, pooled_url), (through, database_url):
        own = settings.model_copy(update={"export_database_url": url, "export_sql": _EXPORT_SQL})
        source = ExportSource.from_settings(own)
        await source.check()
        await source.close()


async def ran_migrate(**environment: str) -> tuple[int, str]:
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "infra.migrate"],
        env=environment, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stderr


async def locks_left(connection: "asyncpg.Connection[asyncpg.Record]") -> int:
    return int(
        await connection.fetchval(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
    )


async def test_a_migration_goes_past_the_pooler_and_waits_for_no_table_for_long(
    pooled_url: str, pooler: TransactionPooler, database_url: str
) -> None:
    """Through it, the limit was set on another session than the one that ran the ALTER TABLE."""
    reader, writer = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    await downgrade(database_url, "0008")
    environment = {
        "DATABASE_URL": pooled_url,
        "HAULAGE_DATABASE_DIRECT_URL": database_url,
        "HAULAGE_DATABASE_POOLER": "transaction",
    }
    async with reader.transaction():
        await reader.fetch("SELECT count(*) FROM outbox")
        began = time.monotonic()
        code, told = await ran_migrate(**environment)
        assert time.monotonic() - began < LOCK_TIMEOUT_SECONDS + 10
    assert code == 1
    assert "lock timeout" in told
    assert "ALTER TABLE outbox" in told
    assert "sqlalche.me" not in told
    assert await ran_migrate(**environment) == (0, "")
    assert pooler.transactions == 0
    assert await locks_left(writer) == 0
    await reader.close()
    await writer.close()


async def test_a_migration_through_a_pooler_that_nobody_told_of_leaves_no_lock_behind(
    pooled_url: str, database_url: str
) -> None:
    """The next one would wait for a session of the pooler's, which is never closed."""
    connection = await asyncpg.connect(database_url)
    for _ in range(3):
        await ran_migrate(DATABASE_URL=pooled_url)
        assert await locks_left(connection) == 0
    await connection.close()


@pytest.mark.parametrize("direct", [{}, {"HAULAGE_DATABASE_DIRECT_URL": ""}])
async def test_no_migration_goes_through_a_pooler(direct: dict[str, str]) -> None:
    url = "postgresql://127.0.0.1:1/haulage"
    code, told = await ran_migrate(
        DATABASE_URL=url, HAULAGE_DATABASE_POOLER="transaction", **direct
    )
    assert (code, "HAULAGE_DATABASE_DIRECT_URL" in told) == (78, True)


async def test_without_the_setting_a_pooler_refuses_the_session_limits(pooled_url: str) -> None:
    async with Database.from_settings(settings_for(pooled_url), name="unset") as database:
        with pytest.raises(Unavailable, match="unsupported startup parameter"):
            await database.ping()
