"""The migrations make what the tables say, on every supported Postgres, with data, and briefly."""

import asyncio
import time

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import DOMAIN
from sqlalchemy.exc import DBAPIError
from structlog.testing import capture_logs

from infra.database import Database
from infra.database_url import open_engine
from infra.migrate import LOCK_TIMEOUT_SECONDS, check_at_head, config, head, migrate
from schema.errors import Unavailable
from schema.ids import uuid7
from schema.tables import metadata
from tests.databases import execute
from tests.platform import Platform, settings_for

_TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
_CHECKS = """
    SELECT conname, convalidated, relname FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid
    WHERE connamespace = 'public'::regnamespace AND contype = 'c'
"""


def differences(connection: Connection) -> list[object]:
    """Give what alembic would change; a domain is what it is a domain of."""

    def differ(_context: object, _column: object, _: object, there: object, said: object) -> object:
        if isinstance(there, DOMAIN):
            return not isinstance(there.data_type, type(said))
        return None

    opts: dict[str, object] = {"compare_server_default": True, "compare_type": differ}
    context = MigrationContext.configure(connection, opts=opts)
    return list(compare_metadata(context, metadata))


async def test_the_migrated_database_is_what_the_tables_say(database_url: str) -> None:
    engine = open_engine(database_url)
    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []
    await engine.dispose()


async def test_migrating_again_changes_nothing_and_keeps_the_data(
    database_url: str, platform: Platform
) -> None:
    job_id = await platform.submit(3)
    await migrate(database_url)
    assert (await platform.job(job_id)).total == 3


async def test_a_database_with_data_is_brought_from_the_first_schema_to_the_newest(
    empty_database_url: str,
) -> None:
    await migrate(empty_database_url, revision="0001")
    async with Database.from_settings(settings_for(empty_database_url), name="t") as database:
        platform = Platform(database)
        await platform.prepare()
        job_id = uuid7()
        await platform.rows(
            "INSERT INTO job (id, key, owner_id, kind, status, max_attempts, request_date, total,"
            " correlation_id) VALUES (:id, 'J20260101_000001', :owner, 'probe', 'RUNNING', 3,"
            " current_date, 1, 'c') RETURNING id",
            id=job_id,
            owner=platform.owner_id,
        )
        await platform.rows(
            "INSERT INTO outbox (type, job_id, owner_id, kind, first_ordinal, last_ordinal,"
            " unfinished, available_at, correlation_id) SELECT 'inputs', id, owner_id, kind, 0, 0,"
            " 1, now() + hours * interval '1 hour', 'c' FROM job, unnest(ARRAY[-1, 1]) AS hours"
            " RETURNING id",
        )
        await platform.rows("UPDATE job SET scheduled_for = 'infinity' RETURNING id")
        await migrate(empty_database_url)
        job = await platform.job(job_id)
        entries = await platform.entries(job_id)
        now = (await platform.rows("SELECT now() AS now"))[0].now
    assert [entry.deferred for entry in entries] == [False, True]
    assert all(entry.turn_at <= now for entry in entries)
    assert job.scheduled_for.year == 8999, "a time that can be reckoned with"
    assert (job.tolerated, job.forgiven, job.sweeping, job.control_version) == (0, 0, False, 0)
    engine = open_engine(empty_database_url)
    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []
    await engine.dispose()


async def test_no_check_is_validated_while_nobody_else_may_read_the_table(
    empty_database_url: str,
) -> None:
    """It would be read through for as long as it is large: a read of one job waited for that."""
    scripts = ScriptDirectory.from_config(config())
    revisions = [script.revision for script in scripts.walk_revisions()][::-1]
    connection = await asyncpg.connect(empty_database_url)
    checks: dict[str, bool] = {}
    for revision in revisions:
        was = {row["relname"] for row in await connection.fetch(_TABLES)}
        await migrate(empty_database_url, revision=revision)
        now = {row["conname"]: row for row in await connection.fetch(_CHECKS)}
        added = [row for name, row in now.items() if name not in checks and row["relname"] in was]
        assert not any(row["convalidated"] for row in added), f"{revision}: make it NOT VALID"
        validated = [name for name, row in now.items() if row["convalidated"]]
        late = [name for name in validated if checks.get(name) is False]
        assert not (added and late), f"{revision}: validate in a transaction of its own"
        checks = {name: row["convalidated"] for name, row in now.items()}
    await connection.close()
    assert all(checks.values()), "what was there from before is validated in the end"


async def test_checks_are_validated_while_others_read_and_write(empty_database_url: str) -> None:
    await migrate(empty_database_url, revision="0006")
    connection = await asyncpg.connect(empty_database_url)
    async with connection.transaction():
        for table in ("job", "outbox", "parked_message"):
            await connection.execute(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE")
        await migrate(empty_database_url, revision="0007")
    await connection.close()


async def test_two_migrations_at_once_are_one(empty_database_url: str) -> None:
    await asyncio.gather(migrate(empty_database_url), migrate(empty_database_url))
    async with Database.from_settings(settings_for(empty_database_url), name="t") as database:
        await check_at_head(database)


async def test_a_database_without_schema_is_not_ready_and_says_what_to_do(
    empty_database_url: str,
) -> None:
    async with Database.from_settings(settings_for(empty_database_url), name="t") as database:
        with pytest.raises(Unavailable, match=r"infra\.migrate"):
            await check_at_head(database)


async def test_a_database_behind_this_code_is_not_ready(
    platform: Platform, database: Database
) -> None:
    await platform.rows("UPDATE alembic_version SET version_num = '0001' RETURNING version_num")
    with pytest.raises(Unavailable, match=head()):
        await check_at_head(database)
    await platform.rows("DELETE FROM alembic_version RETURNING version_num")
    with pytest.raises(Unavailable, match=head()):
        await check_at_head(database)


async def test_a_database_ahead_of_this_code_is_ready_and_told_of_once(
    platform: Platform, database: Database
) -> None:
    """A deployment migrates first: the code before it serves until the code after it does."""
    await platform.rows("UPDATE alembic_version SET version_num = '9999' RETURNING version_num")
    with capture_logs() as lines:
        await check_at_head(database)
        await check_at_head(database)
    assert [line["event"] for line in lines] == ["database.ahead"]


async def test_a_migration_behind_a_long_lock_fails_in_seconds(empty_database_url: str) -> None:
    """Traffic must not queue behind a migration that waits for a lock."""
    blocker = await asyncpg.connect(empty_database_url)
    await blocker.execute("CREATE TABLE job (id int)")
    transaction = blocker.transaction()
    await transaction.start()
    await blocker.execute("LOCK TABLE job IN ACCESS EXCLUSIVE MODE")
    await execute_outside(empty_database_url)
    began = time.monotonic()
    with pytest.raises(DBAPIError, match=r"lock timeout|already exists"):
        await migrate(empty_database_url)
    assert time.monotonic() - began < LOCK_TIMEOUT_SECONDS + 5
    await transaction.rollback()
    await blocker.close()


async def execute_outside(url: str) -> None:
    """Show that the lock does not stop others from working on other tables."""
    await execute(url, "CREATE TABLE unrelated (id int)")
