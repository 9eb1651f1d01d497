"""The one place that commits.

``fetch`` runs one statement and commits it in the same round trip; ``run`` gives a unit of work
one transaction on one connection, and runs it again when it lost a race. Nobody may talk to
another neighbour inside a unit. A database that is away raises ``Unavailable``.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import asyncpg
from sqlalchemy import exc as sa_exc
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine  # noqa: TC002 - statements' own

from infra.database_url import connect_arguments, open_engine
from infra.driver import Writer, driver_of, fetch_rows, give_up, let_plan, session_of
from infra.patience import within
from infra.retry import sqlstate, through_races
from infra.sessions import Sessions
from infra.telemetry.metrics import NO_METRICS
from schema.errors import HaulageError, Unavailable, Unusable
from schema.statements.bound import Bound

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterable,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterator,
        Sequence,
    )

    from sqlalchemy import Executable, Row
    from sqlalchemy.pool import PoolProxiedConnection
    from sqlalchemy.sql.elements import TextClause

    from infra.settings import Settings
    from infra.telemetry.metrics import Metrics

Result = TypeVar("Result")

# Away, starting, stopping, full, too slow, or read-only after a failover: all pass by themselves.
# 57014 is a statement that Postgres gave up on, nearly always at the statement timeout: the same
# statement passes once the load or the lock has, so it is the database that is away for a while.
_AWAY_CLASSES = ("08", "25006", "53", "55P03", "57014", "57P", "58")
# It answers, but does not let us in, or no longer has our database: somebody has to act.
_CLOSED_CLASSES = ("28", "3D000")
_READ_ONLY = "25006"
_LOST_CLASS = "08"
_CLOSE_SECONDS = 5.0
_USED_UP = "no free database connection: the pool is used up, perhaps by waits for postgres"
_PING = text("SELECT 1")
# For an answer of a database that is there.
_PING_SECONDS = 1.0
# Of a session, as the pool knows it: when it was taken from there for the first time.
_OPENED_AT = "haulage.opened_at"


@dataclass(slots=True)
class _Asking:
    """Somebody who waits for an answer for a while: whether it is others who have to end first."""

    waits_for_others: bool = False


_asking: ContextVar[_Asking | None] = ContextVar("asking", default=None)


class Database:
    """A pool of connections to Postgres and the only way to commit through it."""

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        keeps_session: bool = True,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._metrics = metrics
        # Told by each who has a connection now how many seconds it waited until another was done
        # with it: 0 where one was free, or was opened.
        self.told_wait: Callable[[float], None] | None = None
        # A session that has been open since before was perhaps silenced with another.
        self._doubted_at = 0.0
        self._engine = engine
        self._keeps_session = keeps_session
        self._sessions = Sessions(engine)
        self._writer = Writer(engine.dialect)
        self._reading = engine.execution_options(postgresql_readonly=True)
        self._frozen = engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        *,
        name: str,
        setting: str = "DATABASE_URL",
        lock_seconds: float | None = None,
        metrics: Metrics = NO_METRICS,
    ) -> Self:
        """Build the pool; connects on first use. ``name`` shows in ``pg_stat_activity``.

        No row in other hands is waited for longer than ``lock_seconds``, if given: what was waited
        for in vain is ``Unavailable``.
        """
        engine = open_engine(
            settings.database_url,
            setting=setting,
            pool_size=settings.database_pool_size,
            max_overflow=0,
            pool_timeout=settings.database_pool_timeout_seconds,
            pool_use_lifo=True,
            arguments=connect_arguments(settings, name=name, lock_seconds=lock_seconds),
        )
        return cls(engine, keeps_session=settings.database_pooler == "none", metrics=metrics)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection of the pool; those that do not answer are left to the system."""
        self._sessions.put_back()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._engine.dispose()
        except TimeoutError:
            await self._engine.dispose(close=False)

    async def fetch(self, statement: TextClause | Bound) -> Sequence[Row[Any]]:
        """Run one statement, commit it with its own round trip, and return its rows.

        What Postgres refuses comes as SQLAlchemy's error, as it does from a unit.
        """
        if not self._keeps_session:
            # Outside a transaction, preparing and executing may meet two different sessions.
            return await self.run(lambda connection: rows_of(connection, statement))
        return await through_races(partial(self._fetch_once, statement))

    async def _fetch_once(self, statement: TextClause | Bound) -> Sequence[Row[Any]]:
        sql, values = self._writer.write(statement)
        keep_seconds = statement.plan_seconds if isinstance(statement, Bound) else 0.0
        with _speaking_plainly():
            asked, was_used_up = time.perf_counter(), self._is_used_up()
            session = await self._sessions.take()
            while self._is_of_no_use(session):
                session.invalidate()
                session.close()
                session = await self._sessions.take()
            _note_wait(for_others=False)
            try:
                if values:
                    # Without values, Postgres keeps the plan in any case.
                    await let_plan(session, keep_seconds=keep_seconds)
                self._tell_wait_soon(asked, was_used_up=was_used_up)
                return await fetch_rows(session, sql, values)
            except BaseException as error:
                if isinstance(error, TimeoutError):
                    self._doubted_at = time.monotonic()
                if _is_spoilt(error):
                    await give_up(session)
                raise
            finally:
                self._sessions.give_back(session)

    async def answered_within(self, seconds: float, work: Awaitable[Result]) -> Result:
        """Give what this database answers; raise ``Unavailable`` when it is silent for so long.

        What is given up may be carried out all the same. Where one session was silent, others that
        nobody uses may be as well, as after a failover: they are opened anew.
        """
        asking = _Asking()
        token = _asking.set(asking)
        try:
            return await within(seconds, work)
        except TimeoutError as error:
            if asking.waits_for_others:
                raise Unavailable(_USED_UP) from error
            self._doubted_at = time.monotonic()
            raise Unavailable(f"postgres did not answer within {seconds:.1f} s") from error
        finally:
            _asking.reset(token)

    async def answers(self) -> bool:
        """Say whether this database answers at once, whatever it makes of other statements.

        None is free to ask it where the pool is used up: then it does not.
        """
        try:
            await self.answered_within(_PING_SECONDS, self.ping())
        except Exception:  # noqa: BLE001 - whatever it says, it does not do what it is asked for
            return False
        return True

    def _is_of_no_use(self, session: PoolProxiedConnection) -> bool:
        """Say whether a session, just taken from the pool, has ended or is older than a silence.

        It may have ended while nobody used it, which is no reason to fail.
        """
        opened_at: float = session.info.setdefault(_OPENED_AT, time.monotonic())
        return opened_at < self._doubted_at or driver_of(session).is_closed()

    async def run(self, unit: Callable[[AsyncConnection], Awaitable[Result]]) -> Result:
        """Run a unit of work in one transaction; commit when it returns, else roll back.

        The unit may run more than once: it must hold no state of its own from run to run.
        """
        return await through_races(partial(self._run_once, unit))

    async def _run_once(self, unit: Callable[[AsyncConnection], Awaitable[Result]]) -> Result:
        async with self._begun(self._engine) as connection:
            return await unit(connection)

    @asynccontextmanager
    async def stream(
        self, statement: Executable, *, batch_rows: int = 1_000
    ) -> AsyncIterator[AsyncIterator[Sequence[Row[Any]]]]:
        """Read rows through a server-side cursor, a batch at a time, in a read-only transaction.

        Memory stays constant. The connection is held until the block ends, so nothing slow
        belongs into it.
        """
        async with self._begun(self._reading) as connection:
            result = await connection.stream(statement)
            yield result.partitions(batch_rows)

    @asynccontextmanager
    async def snapshot(self, *, statement_timeout_seconds: float) -> AsyncIterator[AsyncConnection]:
        """Read any number of statements as of one moment; each may take its time.

        While it is open, vacuum keeps what it sees: not for anything that goes on and on.
        """
        milliseconds = int(statement_timeout_seconds * 1_000)
        async with self._begun(self._frozen) as connection:
            await connection.exec_driver_sql(f"SET LOCAL statement_timeout = {milliseconds}")
            yield connection

    @asynccontextmanager
    async def _begun(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        with _speaking_plainly():
            async with self._checked_out(engine) as connection, connection.begin():
                async with _kept_whole(connection):
                    yield connection

    @asynccontextmanager
    async def _checked_out(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        asked, was_used_up = time.perf_counter(), self._is_used_up()
        while True:
            self._sessions.make_room()
            async with AsyncExitStack() as held:
                with self._sessions.waiting():
                    connection = await held.enter_async_context(engine.connect())
                await held.enter_async_context(_kept_whole(connection))
                if self._is_of_no_use(session_of(connection)):
                    await connection.invalidate()
                    continue
                _note_wait(for_others=False)
                try:
                    await let_plan(session_of(connection), keep_seconds=0.0)
                    self._tell_wait_soon(asked, was_used_up=was_used_up)
                    yield connection
                except TimeoutError:
                    self._doubted_at = time.monotonic()
                    raise
                return

    def _is_used_up(self) -> bool:
        """Say whether a session must wait for others, and note that for who is patient."""
        is_used_up = self._sessions.are_used_up()
        _note_wait(for_others=is_used_up)
        return is_used_up

    def _tell_wait_soon(self, asked: float, *, was_used_up: bool) -> None:
        """Tell how long a session was waited for, while Postgres works on what is asked of it."""
        seconds = time.perf_counter() - asked
        asyncio.get_running_loop().call_soon(self._tell_wait, seconds, was_used_up)

    def _tell_wait(self, seconds: float, was_used_up: bool) -> None:  # noqa: FBT001 - of a callback
        self._metrics.waited_for_connection(seconds)
        if self.told_wait is not None:
            self.told_wait(seconds if was_used_up else 0.0)

    async def ping(self) -> None:
        """Return when the database answers; raise ``Unavailable`` when it does not."""
        await self.fetch(_PING)


def _note_wait(*, for_others: bool) -> None:
    if (asking := _asking.get()) is not None:
        asking.waits_for_others = for_others


async def rows_of(connection: AsyncConnection, statement: TextClause | Bound) -> Sequence[Row[Any]]:
    """Run one statement within a unit of work and return its rows."""
    if isinstance(statement, Bound):
        result = await connection.execute(statement.clause, statement.values)
    else:
        result = await connection.execute(statement)
    return result.all() if result.returns_rows else ()


async def copy_text(
    connection: AsyncConnection, table: str, *, columns: Sequence[str], blocks: AsyncIterable[bytes]
) -> None:
    """COPY rows in Postgres' text format within the unit's transaction.

    An earlier statement of the unit opened it.
    """
    driver = driver_of(session_of(connection))
    assert driver.is_in_transaction(), "COPY outside the unit's transaction would commit by itself"
    await driver.copy_to_table(table, columns=list(columns), source=blocks, format="text")


@asynccontextmanager
async def _kept_whole(connection: AsyncConnection) -> AsyncIterator[None]:
    """Keep a session out of the pool, and from a rollback, once nobody knows what it holds."""
    try:
        yield
    except BaseException as error:
        if _is_spoilt(error):
            await asyncio.shield(connection.invalidate())
        raise


def _is_spoilt(error: BaseException) -> bool:
    """Say whether nobody knows any more what the session holds, or it is no longer of use."""
    if isinstance(error, sa_exc.DBAPIError | asyncpg.PostgresError):
        # The server of this session may be no longer the one to write to; the next may be.
        code = sqlstate(error) or ""
        return code == _READ_ONLY or code.startswith(_LOST_CLASS)
    # Given up half-way through a protocol exchange, or at odds with the server about it.
    return isinstance(
        error,
        asyncio.CancelledError | TimeoutError | OSError | asyncpg.InternalClientError,
    )


@contextmanager
def _speaking_plainly() -> Iterator[None]:
    """Turn every way of being away into ``Unavailable``; let the other errors be what they are."""
    try:
        yield
    except sa_exc.TimeoutError as error:
        raise Unavailable(_USED_UP) from error
    except (sa_exc.DBAPIError, asyncpg.PostgresError) as error:
        # COPY, and connecting, speak with the driver itself: its errors come unwrapped.
        meaning = _meaning(error)
        if meaning is None:
            raise
        raise meaning from error
    except asyncpg.ClientConfigurationError as error:
        raise Unusable(f"database cannot be connected to: {first_line(error)}") from error
    except asyncpg.InterfaceError as error:
        if isinstance(error, ValueError | TypeError):
            raise  # a value that the driver cannot send: nothing is away
        raise Unavailable(f"database is away: {first_line(error)}") from error
    except (
        OSError,
        TimeoutError,
        asyncpg.InternalClientError,
        asyncpg.TargetServerAttributeNotMatched,
    ) as error:
        raise Unavailable(f"database is away: {first_line(error)}") from error


def _meaning(error: sa_exc.DBAPIError | asyncpg.PostgresError) -> HaulageError | None:
    """Say what an error of Postgres means, whoever reported it; None: a mistake of ours."""
    code = sqlstate(error) or ""
    lost = isinstance(error, sa_exc.DBAPIError) and error.connection_invalidated
    told = first_line(error)
    if lost or code.startswith(_AWAY_CLASSES):
        return Unavailable(f"database is away: {told}")
    if code.startswith(_CLOSED_CLASSES):
        return Unusable(f"database is closed to us: {told}")
    return None


def first_line(error: BaseException) -> str:
    """Give the line in which Postgres or the driver says what is wrong, and nothing around it."""
    said = error.orig if isinstance(error, sa_exc.DBAPIError) and error.orig else error
    text = str(said).strip() or type(said).__name__
    return text.splitlines()[0][:300]
