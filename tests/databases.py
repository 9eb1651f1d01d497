"""A migrated database for each test: as empty as a new one, and nobody else's meanwhile."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import asyncpg
from alembic import command
from sqlalchemy import Connection

from infra.database_url import open_engine
from infra.migrate import config, migrate
from localstack.postgres import Cluster
from schema.tables import metadata

# Whatever a test may have changed beside rows: such a database is not lent again.
_SHAPE = r"""
    SELECT md5(string_agg(part, '|' ORDER BY part)) FROM (
        SELECT (oid, relname, relkind, reloptions, relacl)::text AS part
        FROM pg_class WHERE relnamespace = 'public'::regnamespace
        UNION ALL
        SELECT (attrelid, attname, atttypid, attnotnull)::text FROM pg_attribute
        WHERE attrelid IN (
            SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace) AND attnum > 0
        UNION ALL SELECT (oid, conname)::text FROM pg_constraint
        UNION ALL SELECT (oid, prosrc)::text FROM pg_proc
                  WHERE pronamespace = 'public'::regnamespace
        UNION ALL SELECT (oid, adbin)::text FROM pg_attrdef
        UNION ALL SELECT (oid, tgenabled)::text FROM pg_trigger
        UNION ALL SELECT (oid, ev_action)::text FROM pg_rewrite
                  WHERE ev_class::regclass::text NOT LIKE '%.%' AND oid >= 16384
        UNION ALL SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%'
        UNION ALL SELECT s::text FROM pg_db_role_setting s
        UNION ALL SELECT version_num FROM alembic_version
    ) AS parts
"""
_OTHERS = """
    SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_SEQUENCES = """
    SELECT setval(seqrelid, seqstart, false) FROM pg_sequence
    WHERE seqrelid::regclass::text NOT LIKE '%.%'
"""
_LARGEST_BYTES = 32 * 1024 * 1024


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def downgrade(url: str, revision: str) -> None:
    """Take back the migrations after a revision."""

    def take_back(connection: Connection) -> None:
        alembic = config()
        alembic.attributes["connection"] = connection
        command.downgrade(alembic, revision)

    engine = open_engine(url)
    async with engine.begin() as connection:
        await connection.run_sync(take_back)
    await engine.dispose()


class Databases:
    """Databases of one cluster, cloned from a migrated one and lent to one test after another."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._template = f"template_{uuid4().hex[:8]}"
        self._idle: list[str] = []
        asyncio.run(self._make_template())

    async def _make_template(self) -> None:
        await execute(self._cluster.url(), f"CREATE DATABASE {self._template}")
        url = self._cluster.url(self._template)
        await migrate(url)
        connection = await asyncpg.connect(url)
        try:
            self._shape = await connection.fetchval(_SHAPE)
        finally:
            await connection.close()

    @contextmanager
    def lent(self) -> Iterator[str]:
        """Give the URL of an empty database; when it comes back, nobody is left in it."""
        name = self._idle.pop() if self._idle else self._clone()
        try:
            yield self._cluster.url(name)
        finally:
            if asyncio.run(self._emptied(name)):
                self._idle.append(name)
            else:
                statement = f"DROP DATABASE {name} WITH (FORCE)"
                asyncio.run(execute(self._cluster.url(), statement))

    def _clone(self) -> str:
        name = f"test_{uuid4().hex[:12]}"
        statement = f"CREATE DATABASE {name} TEMPLATE {self._template}"
        asyncio.run(execute(self._cluster.url(), statement))
        return name

    async def _emptied(self, name: str) -> bool:
        """Empty it, or give False where dropping it is simpler or safer."""
        connection = await asyncpg.connect(
            self._cluster.url(name), server_settings={"default_transaction_read_only": "off"}
        )
        try:
            await connection.execute(_OTHERS)
            if await connection.fetchval(_SHAPE) != self._shape:
                return False
            if await connection.fetchval("SELECT pg_database_size($1)", name) > _LARGEST_BYTES:
                return False
            tables = reversed(metadata.sorted_tables)
            rows = "; ".join(f"DELETE FROM {table.name}" for table in tables)
            await connection.execute(f"{rows}; {_SEQUENCES}; SELECT pg_stat_force_next_flush()")
            # What was counted until now is not what the next test does.
            await connection.execute("SELECT pg_stat_reset()")
            return True
        finally:
            await connection.close()
