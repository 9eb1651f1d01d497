"""``python -m infra.migrate``: bring the database to the newest schema.

One migration runs at a time, and none waits longer than the lock timeout for a table: one that
cannot start fails in seconds instead of queueing all traffic behind it. Both the limit and the
advisory lock belong to the transaction of the migration, and so end with it, whatever stands
between here and the server. It goes past a pooler where ``HAULAGE_DATABASE_DIRECT_URL`` says how.
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
from infra.commands import exit_code_of
from infra.database import first_line
from infra.database_url import open_engine
from infra.settings import Settings
from schema.errors import Misconfigured, Unavailable
from schema.redaction import redact

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from infra.database import Database

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LOCK_TIMEOUT_SECONDS = 5
# Any number will do, as long as only migrations of this schema take it.
_ADVISORY_LOCK = 7_210_471_180_354_105
# A role may have a statement timeout, as behind a pooler: to validate a large table takes longer.
_LIMITS = (
    f"SELECT set_config('lock_timeout', '{LOCK_TIMEOUT_SECONDS}s', true),"
    " set_config('statement_timeout', '0', true)"
)
_ONE_AT_A_TIME = f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"


def config() -> Config:
    """Give Alembic's configuration; there is no ini file."""
    alembic = Config()
    # The option is a template of configparser's, in which a per cent sign stands twice.
    folder = str(Path(schema.migrations.__file__).parent).replace("%", "%%")
    alembic.set_main_option("script_location", folder)
    return alembic


@cache
def head() -> str:
    """Give the newest revision that this code knows."""
    revision = ScriptDirectory.from_config(config()).get_current_head()
    assert revision is not None, "there is at least one migration"
    return revision


async def migrate(
    database_url: str, *, revision: str = "head", setting: str = "DATABASE_URL"
) -> None:
    """Upgrade to a revision; raises what Postgres says when a lock is not to be had in time.

    Each migration is a transaction; those before one that fails stay. A database that is at the
    revision, or ahead of this code, is left as it is.
    """
    engine = open_engine(database_url, setting=setting, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            while True:
                async with connection.begin():
                    await connection.exec_driver_sql(_LIMITS)
                    await connection.exec_driver_sql(_ONE_AT_A_TIME)
                    if not await connection.run_sync(_upgrade_by_one, revision):
                        return
    finally:
        await engine.dispose()


def _upgrade_by_one(connection: Connection, revision: str) -> bool:
    """Run the next migration on the way to a revision; False: there is none."""
    scripts = ScriptDirectory.from_config(config())
    # Asked for under the lock: another process may have come further meanwhile.
    found = MigrationContext.configure(connection).get_current_revision()
    if found is not None and found not in _revisions():
        _tell_ahead(frozenset({found}))
        return False
    ahead = [script.revision for script in scripts.iterate_revisions(revision, found or "base")]
    if not ahead:
        return False
    alembic = config()
    alembic.attributes["connection"] = connection
    command.upgrade(alembic, ahead[-1])
    return True


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
    try:
        url, setting = _past_a_pooler(Settings.from_environment(os.environ))
        asyncio.run(migrate(url, setting=setting))
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
        sys.stderr.write(f"infra.migrate: {redact(_told(error))}\n")
        return 1
    return 0


def _past_a_pooler(settings: Settings) -> tuple[str, str]:
    if settings.database_pooler != "none" and not settings.database_direct_url:
        raise Misconfigured("HAULAGE_DATABASE_DIRECT_URL: set it, migrations go past a pooler")
    return settings.session_url


def _told(error: Exception) -> str:
    """Say what was refused and, of Postgres, in which statement."""
    statement = error.statement if isinstance(error, sa_exc.DBAPIError) else None
    return f"{first_line(error)}: {statement}" if statement else first_line(error)


__all__ = ["LOCK_TIMEOUT_SECONDS", "MigrationContext", "check_at_head", "head", "migrate"]

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
