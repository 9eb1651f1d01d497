"""The child processes of all isolated kinds: started on demand, lent, reused, replaced."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Self

import structlog

from consumer.processors.offspring import Child, start_child
from schema.errors import Unavailable

if TYPE_CHECKING:
    from infra.settings import Settings
    from schema.kinds import Kind

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Children:
    """Lends children; there are never more than the slots that can use them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._group = asyncio.TaskGroup()
        self._idle: dict[Child, asyncio.TimerHandle] = {}
        self._busy: set[Child] = set()
        # A start keeps a core busy; many at once would only make each of them slow.
        self._starting = asyncio.Semaphore(os.cpu_count() or 1)

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        has_failed = failure[0] is not None
        for child in [*self._busy, *(self._idle if has_failed else ())]:
            child.kill()
        for child in [] if has_failed else list(self._idle):
            self._retire(child)
        for timer in self._idle.values():
            timer.cancel()
        await self._group.__aexit__(None, None, None)

    async def prepare(self, kind: Kind) -> None:
        """Have one child of a kind ready; raise ``Misconfigured`` or ``Unavailable`` if none is."""
        self.take_back(await self.lend(kind))

    async def lend(self, kind: Kind) -> Child:
        """Give a child that runs nothing; start one when there is none. Raises as ``prepare``."""
        if (child := self._take_idle(kind)) is not None:
            return child
        async with self._starting:
            # Another may have come back while we waited.
            return self._take_idle(kind) or await self._started(kind)

    def take_back(self, child: Child) -> None:
        """Take a child back that has run its input, or has died of it."""
        self._busy.discard(child)
        if not child.is_alive:
            return
        timer = asyncio.get_running_loop().call_later(
            self._settings.isolated_idle_seconds, self._retire, child
        )
        self._idle[child] = timer
        if child.inputs >= self._settings.isolated_inputs:
            self._retire(child)

    def _take_idle(self, kind: Kind) -> Child | None:
        """Take the child of a kind that came back last, so that those too many grow old."""
        for child in [child for child in reversed(self._idle) if child.kind is kind]:
            self._idle.pop(child).cancel()
            if child.is_alive:
                self._busy.add(child)
                return child
        return None

    async def _started(self, kind: Kind) -> Child:
        while self._idle and len(self._idle) + len(self._busy) >= self._settings.concurrency:
            self._retire(next(iter(self._idle)))
        child = await start_child(kind, self._group)
        self._busy.add(child)
        seconds = self._settings.isolated_start_seconds
        try:
            async with asyncio.timeout(seconds):
                await child.greet(self._settings)
        except BaseException as error:
            self._busy.discard(child)
            child.kill()
            if isinstance(error, TimeoutError):
                reason = f"kind {kind.name!r}: its process was not ready within {seconds:g} s"
                raise Unavailable(reason) from error
            raise
        log.info("processor.process_started", kind=kind.name, child=child.pid)
        return child

    def _retire(self, child: Child) -> None:
        if (timer := self._idle.pop(child, None)) is not None:
            timer.cancel()
            self._group.create_task(child.retire(), name=f"retire child {child.pid}")
