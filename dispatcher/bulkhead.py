"""A bulkhead between the jobs of one round: what cannot be done for one holds up no other."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Self, TypeVar

from infra.database import rows_of
from infra.news import News
from infra.patience import shortened
from infra.retry import sqlstate
from schema.errors import Unavailable
from schema.statements.locks import limit_lock_waits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence
    from types import TracebackType

    from sqlalchemy import Row
    from sqlalchemy.ext.asyncio import AsyncConnection
    from sqlalchemy.sql.elements import TextClause

    from infra.database import Database
    from schema.statements.bound import Bound

Result = TypeVar("Result")

# How long a round waits for the first row that somebody else holds; for each further one half as
# long, so that a thousand of them cost a round little more than one.
_PATIENCE_SECONDS = 0.5


class Bulkhead:
    """Keeps the trouble of one job, or of whatever else a duty takes one by one, with that job.

    A duty begins each round, and does what is to be done for each in a compartment.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.news = News()
        self.begin()

    def begin(self) -> None:
        """Begin a round, with new patience."""
        self.lock_seconds = _PATIENCE_SECONDS
        self._timeouts = 0

    async def run(self, unit: Callable[[AsyncConnection], Awaitable[Result]]) -> Result:
        """Run a unit as ``Database.run`` does, but wait only ``lock_seconds`` for any lock."""

        @wraps(unit)
        async def bounded(connection: AsyncConnection) -> Result:
            await connection.execute(limit_lock_waits(self.lock_seconds))
            return await unit(connection)

        return await self._database.run(bounded)

    async def fetch(self, statement: TextClause | Bound) -> Sequence[Row[Any]]:
        """Run one statement like ``run``, and return its rows."""
        return await self.run(lambda connection: rows_of(connection, statement))

    def compartment(self, key: Hashable = None) -> Compartment:
        """Give a block in which the trouble of one stays; ``key`` names whose it is."""
        return Compartment(self, key)

    def lets_through(self, error: Exception) -> bool:
        """Say whether an error is everybody's trouble, so that the round must end.

        A row that somebody holds is its job's own. So is one statement that took too long; a
        second one says that it is the database.
        """
        if not isinstance(error, Unavailable):
            return False
        cause = error.__cause__
        match cause and sqlstate(cause):
            case "55P03":  # lock_not_available
                self.lock_seconds = shortened(self.lock_seconds)
                return False
            case "57014":  # query_canceled
                self._timeouts += 1
                return self._timeouts > 1
            case _:
                return True


class Compartment:
    """A block that keeps an error to itself, unless it is everybody's: then the round ends.

    Without a key every error is everybody's; the key may be found within the block.
    """

    def __init__(self, bulkhead: Bulkhead, key: Hashable) -> None:
        self.key = key
        self.error: Exception | None = None
        # The error, where it is to be told.
        self.news: Exception | None = None
        self._bulkhead = bulkhead

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> bool:
        if error is None:
            self._bulkhead.news.is_well(self.key)
            return False
        if not isinstance(error, Exception) or self.key is None:
            return False
        if self._bulkhead.lets_through(error):
            return False
        self.error = error
        if self._bulkhead.news.is_news(self.key, error):
            self.news = error
        return True
