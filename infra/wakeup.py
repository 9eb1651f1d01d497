"""Waking sleepers after a commit: NOTIFY without payload, coalesced, on connections of its own.

There are two channels: work is due, and some job was controlled (paused, resumed, ended).
A wake-up is a courtesy: whoever waits also polls, so a lost one costs lateness, never work.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any

import asyncpg
import sqlalchemy as sa
import structlog

from infra.database_url import asyncpg_arguments, merged
from infra.retry import jittered
from schema.errors import Unavailable
from schema.statements.bound import FOR_EVER, Bound

if TYPE_CHECKING:
    from infra.database import Database
    from infra.settings import Settings

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CHANNEL = "haulage_work"
CONTROL_CHANNEL = "haulage_control"
# How the driver says that there is no connection, or no longer one.
_LOST = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
# Wake-ups further apart than this go along with the commit that is their reason.
_SELDOM_SECONDS = 0.02
_NOTIFY = sa.text("SELECT pg_notify(channel, '') FROM unnest(CAST(:channels AS text[])) AS channel")


class Listener:
    """Hears wake-ups on a dedicated, direct connection; survives losing it."""

    def __init__(self, settings: Settings, *, name: str, heartbeat_seconds: float = 5.0) -> None:
        url, setting = settings.session_url
        of_the_url = asyncpg_arguments(url, setting=setting)
        own: dict[str, Any] = {
            "timeout": settings.database_connect_timeout_seconds,
            "statement_cache_size": 0,
            "server_settings": {"application_name": f"{name} listener"[:63]},
        }
        self._arguments = merged(own, of_the_url)
        self._enabled = settings.notify
        self._heartbeat_seconds = heartbeat_seconds
        self._failures = 0
        self._woken: list[asyncio.Event] = []
        self._controlled: list[asyncio.Event] = []

    def wakes(self) -> asyncio.Event:
        """Give an event of the caller's own that is set whenever there may be work.

        Whoever waits for it clears it before looking, so that nothing is missed in between.
        """
        event = asyncio.Event()
        self._woken.append(event)
        return event

    def wake(self) -> None:
        """Set the events of ``wakes``."""
        for event in self._woken:
            event.set()

    def controls(self) -> asyncio.Event:
        """Give an event of the caller's own that is set whenever some job was controlled."""
        event = asyncio.Event()
        self._controlled.append(event)
        return event

    def tell_controlled(self) -> None:
        """Set the events of ``controls``."""
        for event in self._controlled:
            event.set()

    async def run(self) -> None:
        """Listen until cancelled; reconnect with backoff, and wake after each reconnection."""
        if not self._enabled:
            return
        while True:
            try:
                await self._listen()
            except Exception as error:  # noqa: BLE001 - without wake-ups work is late, not lost
                self._failures += 1
                delay = jittered(self._failures, base_seconds=0.2, cap_seconds=10)
                if self._failures == 1:
                    _tell(error)
                await asyncio.sleep(delay)

    async def _listen(self) -> None:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(**self._arguments)
        ended = asyncio.Event()
        connection.add_termination_listener(lambda *_: ended.set())
        try:
            await connection.add_listener(CHANNEL, lambda *_: self.wake())
            await connection.add_listener(CONTROL_CHANNEL, lambda *_: self.tell_controlled())
            log.info("listener.listening", channels=[CHANNEL, CONTROL_CHANNEL])
            self.wake()
            self.tell_controlled()
            while not await _comes(ended, self._heartbeat_seconds):
                # A half-open connection raises no error by itself: ask it.
                await connection.execute("SELECT 1", timeout=self._heartbeat_seconds)
                self._failures = 0
            raise ConnectionResetError("the session was ended")
        finally:
            connection.terminate()


def _tell(error: Exception) -> None:
    if isinstance(error, _LOST):
        log.warning("listener.lost", error=str(error) or type(error).__name__)
    else:
        log.error("listener.lost", exc_info=error)


async def _comes(event: asyncio.Event, timeout_seconds: float) -> bool:
    """Wait for an event; say whether it came in time."""
    try:
        async with asyncio.timeout(timeout_seconds):
            return await event.wait()
    except TimeoutError:
        return False


class Notifier:
    """Sends wake-ups after commits: one at a time, any number of requests folded into the next."""

    def __init__(self, database: Database, *, enabled: bool) -> None:
        self._database = database
        self._enabled = enabled
        self._wanted = asyncio.Event()
        self._channels: set[str] = set()
        self._along_at = -math.inf

    def notify(self) -> None:
        """Ask for a wake-up of those who wait for work; never waits."""
        self._ask(CHANNEL)

    def along(self) -> str | None:
        """Give the channel that a commit may notify by itself; nothing where that would be many.

        It spares the wake-up a statement of its own. Postgres takes such commits one at a time.
        """
        now = time.monotonic()
        is_seldom = self._enabled and now - self._along_at >= _SELDOM_SECONDS
        if is_seldom:
            self._along_at = now
        return CHANNEL if is_seldom else None

    def notify_control(self) -> None:
        """Ask that consumers look at their jobs' statuses now; never waits."""
        self._ask(CONTROL_CHANNEL)

    def _ask(self, channel: str) -> None:
        if self._enabled:
            self._channels.add(channel)
            self._wanted.set()

    async def run(self) -> None:
        """Send what was asked for until cancelled; what cannot be sent is lost, and no more."""
        told: str | None = None
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            channels, self._channels = sorted(self._channels), set()
            try:
                statement = Bound(_NOTIFY, {"channels": channels}, plan_seconds=FOR_EVER)
                await self._database.fetch(statement)
            except Unavailable as error:
                log.debug("notify.failed", error=str(error))
            except Exception as error:  # a courtesy never ends the process
                if told != type(error).__name__:
                    log.exception("notify.failed", remedy="sleepers notice at their next poll")
                told = type(error).__name__
            else:
                told = None
