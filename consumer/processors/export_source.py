"""The SQL that an export writes down: checked once, then read in constant memory."""

from __future__ import annotations

import datetime as dt
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import sqlalchemy as sa
from sqlalchemy import exc as sa_exc

from infra.database import Database
from schema.errors import Misconfigured
from schema.redaction import redact

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sqlalchemy import Row, TextClause

    from infra.settings import Settings
    from schema.export import ExportInput

DEFAULT_SQL = """
SELECT index_key, effective_date, asof_indicator, line, level
FROM index_level
WHERE index_key = :index_key AND effective_date = :effective_date
  AND asof_indicator = :asof_indicator
ORDER BY line
"""
_PARAMETERS: dict[str, Any] = {
    "index_key": sa.Text(),
    "effective_date": sa.Date(),
    "asof_indicator": sa.Text(),
}


class ExportSource:
    """A query with three parameters, over connections of its own.

    The pool is its own even on Haulage's database, and it is small: reads of whole files never
    take the connections with which the consumer claims and settles.
    """

    def __init__(self, database: Database, sql: str) -> None:
        self._database = database
        # One statement that can stand in brackets: a closing semicolon is the most there is.
        self._sql = sql.strip().removesuffix(";")
        statement = sa.text(self._sql)
        found = set(statement.compile().params)
        if found != set(_PARAMETERS):
            wanted = ", ".join(f":{name}" for name in _PARAMETERS)
            reason = f"HAULAGE_EXPORT_SQL must have the parameters {wanted}; it has {sorted(found)}"
            raise Misconfigured(reason)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Build the source that the settings describe; connects on first use."""
        pooler = settings.export_database_pooler
        own = settings.model_copy(
            update={
                "database_url": settings.export_database_url or settings.database_url,
                "database_pool_size": settings.export_streams,
                "database_pooler": settings.database_pooler if pooler == "same" else pooler,
            }
        )
        sql = settings.export_sql or DEFAULT_SQL
        setting = "HAULAGE_EXPORT_DATABASE_URL" if settings.export_database_url else "DATABASE_URL"
        return cls(Database.from_settings(own, name="haulage-export", setting=setting), sql)

    async def check(self) -> None:
        """Return when the query can run; raise ``Misconfigured`` when it never can.

        Raises ``Unavailable`` when nothing can be said because the source is away.
        """
        # In brackets only what reads is allowed; the line break ends a comment on the last line.
        bracketed = f"EXPLAIN SELECT * FROM ({self._sql}\n) AS source"
        plan = _bound(bracketed, "X", dt.date(2000, 1, 1), "X")
        try:
            await self._database.fetch(plan)
        except sa_exc.StatementError as error:
            reason = redact(str(error.orig or error)).splitlines()[0][:500]
            raise Misconfigured(f"HAULAGE_EXPORT_SQL cannot run: {reason}") from error

    @asynccontextmanager
    async def rows(self, wanted: ExportInput) -> AsyncIterator[AsyncIterator[Sequence[Row[Any]]]]:
        """Read the rows of one file, a batch at a time; the connection is held meanwhile."""
        query = _bound(self._sql, wanted.indexKey, wanted.date(), wanted.asofindicator)
        async with self._database.stream(query) as batches:
            yield batches

    async def close(self) -> None:
        """Close the connections."""
        await self._database.close()


def _bound(sql: str, index_key: str, effective_date: dt.date, asof_indicator: str) -> TextClause:
    values = (index_key, effective_date, asof_indicator)
    return sa.text(sql).bindparams(
        *(
            sa.bindparam(name, value, type_=type_)
            for (name, type_), value in zip(_PARAMETERS.items(), values, strict=True)
        )
    )
