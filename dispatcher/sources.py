"""What a relay sends: the entries of one type, how they are locked, and how they end once sent."""

from __future__ import annotations

import asyncio
import json
import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import structlog

from infra.row_by_row import RowByRow, Target
from schema.errors import Unavailable
from schema.lifecycle import EntryType
from schema.message import Message, Trace
from schema.statements import relay as statements
from schema.statements.claim import next_ready
from schema.statements.turns import FIRST_TURN, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Row

    from infra.database import Database
    from infra.settings import Settings

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# A kind that cannot be locked while others can is passed over for so long, for twice as long each
# time. Then it is tried before the others are locked, which would have to wait for it, and for a
# part of that time.
_REST_SECONDS = 5.0
_REST_CAP_SECONDS = 60.0
_SHARE_OF_A_REST = 0.5
# And never for more of a lock's time: what was locked before must be sent in the rest of it.
_SHARE_OF_A_LOCK = 1 / 3
_LEAST_SECONDS = 2.5
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


class _Failing(NamedTuple):
    """A kind that could not be locked: until when it rests, by the loop's clock, and how long."""

    until: float
    seconds: float


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
        # Kinds that could not be locked, since they last were.
        self._failing: dict[str, _Failing] = {}
        self._turns: dict[str, Turn] = {}
        # When the window of a kind was filled last, by the clock of the loop.
        self._filled: dict[str, float] = {}

    async def lock(self, token: str) -> Sequence[Row[Any]]:
        """Lock a batch of each kind: what has its turn and fits the window."""
        self.is_full = False
        await self._promoting.fetch(statements.promote_due())
        rooms = await self._database.fetch(statements.find_room(window=self._settings.relay_window))
        tried = [row for row in rooms if self._has_its_turn(row.kind, row.room)]
        found: list[Row[Any]] = []
        failed: dict[str, Unavailable] = {}
        is_any_lockable = False
        for row in sorted(tried, key=lambda row: row.kind not in self._failing):
            try:
                found += await self._lock(token, row.kind, row.room)
                is_any_lockable = True
            except Unavailable as error:
                if await self._database.answers():
                    failed[row.kind] = error
                elif not found:
                    raise
                if found:
                    break  # these are sent, or they would wait for their locks to end
        if failed and not is_any_lockable and failed.keys() - self._failing.keys():
            # It may be the database, as far as is known.
            raise next(iter(failed.values()))
        self._rest(failed, is_any_lockable=is_any_lockable)
        return found

    def _has_its_turn(self, kind: str, room: int) -> bool:
        failing = self._failing.get(kind)
        if failing is not None and failing.until > asyncio.get_running_loop().time():
            return False
        if not self._is_worth_a_round(kind, room):
            self.is_full = True
            return False
        return True

    async def _lock(self, token: str, kind: str, room: int) -> Sequence[Row[Any]]:
        turn = self._turns.get(kind, FIRST_TURN)
        locking = self._locking.fetch(
            statements.lock_ready(
                token,
                self._settings.relay_lock_seconds,
                kind=kind,
                most=min(room, self._settings.relay_batch),
                turn=turn,
            )
        )
        patience = max(_LEAST_SECONDS, self._settings.relay_lock_seconds * _SHARE_OF_A_LOCK)
        if (failing := self._failing.get(kind)) is not None:
            patience = min(patience, failing.seconds * _SHARE_OF_A_REST)
        rows = await self._database.answered_within(patience, locking)
        self._failing.pop(kind, None)
        self._turns[kind] = turn.after(rows)
        if len(rows) >= room:
            self._filled[kind] = asyncio.get_running_loop().time()
        return rows

    def _rest(self, failed: Mapping[str, Unavailable], *, is_any_lockable: bool) -> None:
        """Pass over the kinds that could not be locked while another was: it is about them."""
        for kind, error in failed.items():
            before = self._failing.get(kind)
            seconds = _REST_SECONDS
            if before and is_any_lockable:
                seconds = min(2 * before.seconds, _REST_CAP_SECONDS)
            self._failing[kind] = _Failing(asyncio.get_running_loop().time() + seconds, seconds)
            log.warning("relay.not_locked", kind=kind, error=str(error), retry_in_seconds=seconds)

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
