"""``python -m infra.migrate``: bring the database to the newest schema.

One migration runs at a time (advisory lock), each in its own transaction, and none waits longer
than the lock timeout for a table: a migration that cannot start fails in seconds instead of
queueing all traffic behind it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import structlog
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import exc as sa_exc
from sqlalchemy import text
from sqlalchemy.pool import NullPool

import schema.migrations
from infra.database_url import open_engine
from infra.settings import refuse_unknown_names
from schema.errors import Misconfigured, Unavailable
from schema.redaction import redact

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from infra.database import Database

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LOCK_TIMEOUT_SECONDS = 5
# Any number will do, as long as only migrations of this schema take it.
_ADVISORY_LOCK = 7_210_471_180_354_105


def config() -> Config:
    """Give Alembic's configuration; there is no ini file."""
    alembic = Config()
    alembic.set_main_option("script_location", str(Path(schema.migrations.__file__).parent))
    return alembic


@cache
def head() -> str:
    """Give the newest revision that this code knows."""
    revision = ScriptDirectory.from_config(config()).get_current_head()
    assert revision is not None, "there is at least one migration"
    return revision


async def migrate(database_url: str, *, revision: str = "head") -> None:
    """Upgrade to a revision; raises what Postgres says when a lock is not to be had in time."""
    engine = open_engine(database_url, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            await connection.execute(text(f"SET lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'"))
            await connection.execute(text(f"SELECT pg_advisory_lock({_ADVISORY_LOCK})"))
            await connection.commit()
            await connection.run_sync(_upgrade, revision)
    finally:
        await engine.dispose()


def _upgrade(connection: Connection, revision: str) -> None:
    alembic = config()
    alembic.attributes["connection"] = connection
    command.upgrade(alembic, revision)
    connection.commit()


async def check_at_head(database: Database) -> None:
    """Return when the database has this code's schema or a newer one, else raise ``Unavailable``.

    A deployment migrates first: until it is over, the code before it works on the schema after it.
    """
    try:
        rows = await database.fetch(text("SELECT version_num FROM alembic_version"))
    except sa_exc.ProgrammingError as error:
        raise Unavailable("database has no schema yet: run python -m infra.migrate") from error
    found = frozenset(row.version_num for row in rows)
    if head() in found:
        return
    if found <= _revisions():
        raise Unavailable(f"database is at revision {sorted(found)}, this code needs {head()}")
    _tell_ahead(found)


@cache
def _revisions() -> frozenset[str]:
    """Give every revision that this code knows."""
    scripts = ScriptDirectory.from_config(config())
    return frozenset(script.revision for script in scripts.walk_revisions())


@cache
def _tell_ahead(found: frozenset[str]) -> None:
    """Log once that the database is ahead of this code."""
    log.warning("database.ahead", revisions=sorted(found), known=head())


def main() -> int:
    """Run the command."""
    url = os.environ.get("DATABASE_URL")
    if not url:
        sys.stderr.write("infra.migrate: set DATABASE_URL\n")
        return 78
    try:
        refuse_unknown_names(os.environ)
        asyncio.run(migrate(url))
    except Misconfigured as error:
        sys.stderr.write(f"infra.migrate: {error}\n")
        return 78
    except (
        OSError,
        sa_exc.DBAPIError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
    ) as error:
        sys.stderr.write(f"infra.migrate: {redact(str(error))}\n")
        return 1
    return 0


__all__ = ["LOCK_TIMEOUT_SECONDS", "MigrationContext", "check_at_head", "head", "migrate"]

if __name__ == "__main__":
    sys.exit(main())
