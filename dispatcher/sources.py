"""What a relay sends: the entries of one type, how they are locked, and how they end once sent."""

from __future__ import annotations

import asyncio
import json
import math
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from infra.retry import is_statement_timeout
from infra.row_by_row import RowByRow, Target
from schema.errors import Unavailable
from schema.lifecycle import EntryType
from schema.message import Message, Trace
from schema.statements import relay as statements
from schema.statements.claim import next_ready
from schema.statements.turns import FIRST_TURN, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Row

    from infra.database import Database
    from infra.settings import Settings

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# A kind that cost a statement timeout, or failed twice, is passed over for so long.
_REST_SECONDS = 60.0
# How soon a full window is looked at again: consumers do not say what they claim.
_WINDOW_PAUSE_SECONDS = 0.05
# A window that was filled is filled up again by quarters: a round costs as much for one entry as
# for many. Less room than that waits so long.
_PARTS_OF_A_WINDOW = 4
_WINDOW_PATIENCE_SECONDS = 0.25


class Source(Protocol):
    """The entries of one type."""

    # Entries are ready that the last locking left, because a window has no room for them.
    is_full: bool

    async def lock(self, token: str) -> Sequence[Row[Any]]:
        """Lock a batch of what is due, for as long as the settings say."""
        ...

    async def dues(self) -> Sequence[float]:
        """Say in how many seconds there may be more to lock (0 or less: there is)."""
        ...

    def body(self, row: Row[Any]) -> str:
        """Give the ASCII text of the message for an entry."""
        ...

    async def write_sent(self, token: str, rows: Sequence[Row[Any]]) -> None:
        """Write down what the queue took."""
        ...


class InputSource:
    """Work on inputs, owners in turn; of each kind only a window is sent and not yet claimed.

    A window for each kind: one that nobody consumes now must not hold up the others.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self.is_full = False
        self._database = database
        self._promoting = RowByRow(database, doing="promote")
        self._locking = RowByRow(database, doing="lock for sending")
        self._marking = RowByRow(database, doing="mark as sent")
        self._settings = settings
        # Kinds that could not be locked in time, and until when they are passed over.
        self._resting: dict[str, float] = {}
        # The kind that could not be locked the last time, if it was not locked since.
        self._failed: str | None = None
        self._turns: dict[str, Turn] = {}
        # When the window of a kind was filled last, by the clock of the loop.
        self._filled: dict[str, float] = {}

    async def lock(self, token: str) -> Sequence[Row[Any]]:
        """Lock a batch of each kind: what has its turn and fits the window."""
        self.is_full = False
        await self._promoting.fetch(statements.promote_due())
        found: list[Row[Any]] = []
        clock = asyncio.get_running_loop().time
        window = self._settings.relay_window
        for row in await self._database.fetch(statements.find_room(window=window)):
            if self._resting.get(row.kind, -math.inf) > clock():
                continue
            if not self._is_worth_a_round(row.kind, row.room):
                self.is_full = True
                continue
            turn = self._turns.get(row.kind, FIRST_TURN)
            try:
                rows = await self._locking.fetch(
                    statements.lock_ready(
                        token,
                        self._settings.relay_lock_seconds,
                        kind=row.kind,
                        most=min(row.room, self._settings.relay_batch),
                        turn=turn,
                    )
                )
            except Unavailable as error:
                if is_statement_timeout(error) or self._failed == row.kind:
                    # It is about this kind, and the next rounds go on without it.
                    self._resting[row.kind] = clock() + _REST_SECONDS
                    log.warning("relay.not_locked", kind=row.kind, error=str(error))
                self._failed = row.kind
                if not found:
                    raise
                break  # what was locked before is sent, or it would wait for its lock to end
            if self._failed == row.kind:
                self._failed = None
            self._turns[row.kind] = turn.after(rows)
            if len(rows) >= row.room:
                self._filled[row.kind] = clock()
            found += rows
        return found

    def _is_worth_a_round(self, kind: str, room: int) -> bool:
        """Say whether a kind's window has room, and enough of it since it was filled."""
        since = asyncio.get_running_loop().time() - self._filled.get(kind, -math.inf)
        least = self._settings.relay_window / _PARTS_OF_A_WINDOW
        return room > 0 and (room >= least or since >= _WINDOW_PATIENCE_SECONDS)

    async def dues(self) -> Sequence[float]:
        """Give the times to ready and to deferred entries, or to the next look at a full window."""
        if self.is_full:
            return [_WINDOW_PAUSE_SECONDS]
        shunned = {*self._promoting.shunned(), *self._locking.shunned()}
        rows = await self._database.fetch(next_ready(shunned=shunned))
        return [float(row.seconds) for row in rows]

    def body(self, row: Row[Any]) -> str:
        """Give the message that points at the entry."""
        trace = Trace(row.correlation_id, row.traceparent, row.tracestate, row.baggage)
        return Message(row.id, row.job_id, row.kind, trace).body()

    async def write_sent(self, token: str, rows: Sequence[Row[Any]]) -> None:
        """Mark the entries: they wait for a consumer now."""
        targets = [Target(row.id, row.job_id) for row in rows]
        await self._marking.fetch_these(targets, partial(statements.mark_sent, token))


class EventSource:
    """Events to publish: they have no turns and no window, and nothing is left of one sent."""

    is_full = False

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._locking = RowByRow(database, doing="lock for sending")
        self._deleting = RowByRow(database, doing="delete as sent")
        self._settings = settings

    async def lock(self, token: str) -> Sequence[Row[Any]]:
        """Lock a batch of the events that are due."""
        return await self._locking.fetch(
            statements.lock_due_events(
                token, self._settings.relay_lock_seconds, most=self._settings.relay_batch
            )
        )

    async def dues(self) -> Sequence[float]:
        """Give the time to the next event."""
        return [float(row.seconds) for row in await self._database.fetch(statements.next_event())]

    def body(self, row: Row[Any]) -> str:
        """Give what is stored, in ASCII: SQS refuses some characters that JSON allows."""
        return json.dumps(json.loads(row.payload), separators=(",", ":"))

    async def write_sent(self, token: str, rows: Sequence[Row[Any]]) -> None:
        """Delete the entries."""
        targets = [Target(row.id, row.job_id) for row in rows]
        await self._deleting.fetch_these(
            targets, partial(statements.delete_published_events, token)
        )


SOURCES: dict[EntryType, Callable[[Database, Settings], Source]] = {
    EntryType.INPUTS: InputSource,
    EntryType.EVENT: EventSource,
}
