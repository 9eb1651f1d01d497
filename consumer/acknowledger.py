"""Deletes messages after their commit, in batches, off the path of the work."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from infra.queue.protocol import Claim, Queue

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Acknowledger:
    """Collects claims that are done with and forgets their deliveries together."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._waiting: list[Claim] = []
        self._wanted = asyncio.Event()
        self._closing = False
        self._has_failed = False

    def add(self, claim: Claim) -> None:
        """Hand over a claim whose outcome, or whose release, is committed; never waits."""
        self._waiting.append(claim)
        self._wanted.set()

    def close(self) -> None:
        """Let ``run`` end once what was handed over is acknowledged."""
        self._closing = True
        self._wanted.set()

    def drop(self, claim: Claim) -> None:
        """Hand over a claim whose lease was lost or left to lapse: its message may come again."""
        self._queue.abandon(claim)

    async def run(self) -> None:
        """Acknowledge what is handed over, until closed."""
        while self._waiting or not self._closing:
            await self._wanted.wait()
            await self.flush()

    async def flush(self) -> None:
        """Acknowledge what is waiting now."""
        self._wanted.clear()
        claims, self._waiting = self._waiting, []
        if not claims:
            return
        try:
            await self._queue.acknowledge(claims)
            self._has_failed = False
        except Exception:  # the messages come again, and find that there is nothing left to do
            if not self._has_failed:
                log.exception("message.not_deleted", messages=len(claims))
            self._has_failed = True
