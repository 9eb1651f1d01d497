"""The gate of a simulated process: each call to a neighbour waits there, and meets its fate."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Row, TextClause
from sqlalchemy.ext.asyncio import AsyncConnection

import schema.statements
from infra.database import Database
from schema.errors import Unavailable
from schema.statements.bound import Bound
from schema.statements.keys import find_key
from schema.statements.paces import list_paces

Result = TypeVar("Result")


class Fate(Enum):
    """What becomes of a call, and of the process that makes it."""

    WELL = "well"
    REFUSED = "nothing is done, and the caller is told so"
    UNANSWERED = "all is done, and the answer is lost"
    PARTLY = "of a batch, every second entry fails"
    AGAIN = "a transaction loses a race and runs twice"
    DIES_BEFORE = "the process dies before the call"
    DIES_AFTER = "all is done, and the process dies before it knows"


@dataclass(eq=False)
class Call:
    """A call that waits at the gate; ``is_ready`` says whether an answer could come."""

    name: str
    go: asyncio.Future[Fate]
    is_ready: Callable[[], bool]
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Gate:
    """Holds up the calls of one process, in the order in which they came."""

    def __init__(self) -> None:
        self.is_closed = False
        self.arrival = asyncio.Event()
        self.waiting: list[Call] = []
        self._passing: set[asyncio.Task[Any]] = set()

    def next_call(self) -> Call | None:
        return next((call for call in self.waiting if call.is_ready()), None)

    @property
    def is_busy(self) -> bool:
        return bool(self._passing)

    async def passed(self) -> None:
        """Return when no call is under way that had no need to wait."""
        while self._passing:
            await asyncio.wait(self._passing)

    async def let_pass(self, act: Coroutine[Any, Any, Result]) -> Result:
        """Act at once, whatever happens."""
        task = asyncio.get_running_loop().create_task(act)
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)
        return await asyncio.shield(task)

    async def wait(
        self,
        name: str,
        act: Callable[[Fate], Awaitable[Result]],
        away: Callable[[], Exception],
        is_ready: Callable[[], bool] = lambda: True,
    ) -> Result:
        """Wait to be let go, act, and answer as the fate says."""
        if self.is_closed:
            raise asyncio.CancelledError
        call = Call(name, asyncio.get_running_loop().create_future(), is_ready)
        self.waiting.append(call)
        self.arrival.set()
        try:
            fate = await call.go
        finally:
            self.waiting.remove(call)
        try:
            if fate is Fate.REFUSED:
                raise away()
            result = await act(fate)
            if fate is Fate.UNANSWERED:
                raise away()
        finally:
            call.done.set()
        if fate is Fate.DIES_AFTER:
            await asyncio.get_running_loop().create_future()
        return result


class GatedDatabase(Database):
    """A process's view of the database, through its gate; all share one pool."""

    gate: Gate

    @classmethod
    def through(cls, gate: Gate, database: Database) -> "GatedDatabase":
        gated = cls(database._engine)
        gated._sessions = database._sessions
        gated.gate = gate
        return gated

    async def fetch(self, statement: TextClause | Bound) -> Sequence[Row[Any]]:
        name = name_of(statement)
        if name in _CACHED:
            return await self.gate.let_pass(super().fetch(statement))
        fetch = super().fetch
        return await self.gate.wait(name, lambda _: fetch(statement), _database_away)

    async def run(self, unit: Callable[[AsyncConnection], Awaitable[Result]]) -> Result:
        run = super().run

        async def act(fate: Fate) -> Result:
            if fate is Fate.AGAIN:
                await run(_losing(unit))
            return await run(unit)

        return await self.gate.wait(f"unit {unit.__qualname__}", act, _database_away)


def _losing(
    unit: Callable[[AsyncConnection], Awaitable[object]],
) -> Callable[[AsyncConnection], Awaitable[None]]:
    async def lost(connection: AsyncConnection) -> None:
        savepoint = await connection.begin_nested()
        await unit(connection)
        await savepoint.rollback()

    return lost


def _database_away() -> Exception:
    return Unavailable("database is away: simulated")


def name_of(statement: TextClause | Bound) -> str:
    """Name a statement as the module that holds it does."""
    return _NAMES.get(statement.text, statement.text.split(maxsplit=1)[0])


def _statements() -> dict[str, str]:
    (folder,) = schema.statements.__path__
    names = {}
    for path in sorted(Path(folder).glob("[a-z]*.py")):
        module = import_module(f"schema.statements.{path.stem}")
        for name, value in vars(module).items():
            if isinstance(value, TextClause):
                names[value.text] = f"{path.stem}{name.lower()}"
    return names


_NAMES = _statements()
# Asked again when the host's clock says so, which no step can foresee.
_CACHED = frozenset({name_of(find_key(b"")), name_of(list_paces())})
