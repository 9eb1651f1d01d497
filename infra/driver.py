"""Speaking with the driver itself, where SQLAlchemy would cost several times the statement.

The pool, transactions and the meaning of ``:name`` stay SQLAlchemy's, and so do rows and errors:
whoever runs a statement cannot tell which way it went.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import asyncpg
from sqlalchemy import exc as sa_exc
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData

from infra.patience import within
from schema.statements.bound import Bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Dialect, Result, Row
    from sqlalchemy.ext.asyncio import AsyncConnection
    from sqlalchemy.pool import PoolProxiedConnection
    from sqlalchemy.sql.elements import TextClause

_MOST_TEXTS = 1_000
_CLOSE_SECONDS = 2.0
# Of a session, as the pool knows it: whether it keeps plans now, and since when those it has.
_KEEPS_PLANS = "haulage.keeps_plans"
_PLANS_SINCE = "haulage.plans_since"
_REFUSALS = (
    ("22", sa_exc.DataError),
    ("23", sa_exc.IntegrityError),
    ("42", sa_exc.ProgrammingError),
)


class _Text(NamedTuple):
    sql: str
    names: tuple[str, ...]


class Writer:
    """Writes statements as the driver takes them; each text is compiled once."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._texts: dict[object, _Text] = {}

    def write(self, statement: TextClause | Bound) -> tuple[str, list[Any]]:
        """Give the SQL with ``$1`` and so on, and the values in that order."""
        if isinstance(statement, Bound):
            text = self._texts.get(statement.text) or self._compile(
                statement.clause, statement.text
            )
            return text.sql, [statement.values[name] for name in text.names]
        parameters: Any = statement.get_children()
        values: dict[str, Any] = {}
        # SQLAlchemy writes the types that it takes values for into the text.
        key: list[object] = [statement.text]
        for parameter in parameters:
            values[parameter.key] = parameter.effective_value
            key.append(type(parameter.type))
        about = tuple(key)
        text = self._texts.get(about) or self._compile(statement, about)
        return text.sql, [values[name] for name in text.names]

    def _compile(self, clause: TextClause, key: object) -> _Text:
        compiled: Any = clause.compile(dialect=self._dialect)
        if len(self._texts) >= _MOST_TEXTS:
            self._texts.clear()
        text = self._texts[key] = _Text(str(compiled), tuple(compiled.positiontup or ()))
        return text


def session_of(connection: AsyncConnection) -> PoolProxiedConnection:
    """Give the session of a connection that is checked out, as the pool has it."""
    assert connection.sync_connection is not None, "it is checked out"
    return connection.sync_connection.connection


def driver_of(session: PoolProxiedConnection) -> asyncpg.Connection[Any]:
    """Give the driver's connection of a session."""
    driver: asyncpg.Connection[Any] | None = session.driver_connection
    assert driver is not None, "a session that is checked out has a driver connection"
    return driver


async def give_up(session: PoolProxiedConnection) -> None:
    """Close a session whose statement nobody waits for, for good; have the server end that, too.

    It would go on, and hold its locks, and commit. The driver asks for that on a connection of
    its own, which takes a moment: a server that is silent gets no longer.
    """
    try:
        with suppress(Exception):
            await within(_CLOSE_SECONDS, driver_of(session).close())
    finally:
        session.invalidate()


async def let_plan(session: PoolProxiedConnection, *, keep_seconds: float) -> None:
    """Let the session keep plans, none of them for longer than this; 0 has each made anew."""
    commands: list[str] = []
    info, keeps, now = session.info, keep_seconds > 0, time.monotonic()
    if info.get(_KEEPS_PLANS, False) != keeps:
        mode = "force_generic_plan" if keeps else "force_custom_plan"
        commands.append(f"SET plan_cache_mode = {mode}")
    since = info.setdefault(_PLANS_SINCE, now)
    if keeps and now - since > keep_seconds:
        commands.append("DISCARD PLANS")
        since = now
    if commands:
        await driver_of(session).execute("; ".join(commands))
        info[_KEEPS_PLANS], info[_PLANS_SINCE] = keeps, since


async def fetch_rows(
    session: PoolProxiedConnection, sql: str, values: list[Any]
) -> Sequence[Row[Any]]:
    """Run a statement that commits by itself; raise SQLAlchemy's error where it is refused."""
    try:
        records = await driver_of(session).fetch(sql, *values)
    except asyncpg.PostgresError as error:
        state = error.sqlstate or ""
        refusal = next((it for begin, it in _REFUSALS if state.startswith(begin)), None)
        raise (refusal or sa_exc.DBAPIError)(sql, None, error, hide_parameters=True) from error
    if not records:
        return ()
    rows: Result[Any] = IteratorResult(_columns(tuple(records[0].keys())), iter(records))
    return rows.all()


@lru_cache(maxsize=_MOST_TEXTS)
def _columns(names: tuple[str, ...]) -> SimpleResultMetaData:
    return SimpleResultMetaData(names)
