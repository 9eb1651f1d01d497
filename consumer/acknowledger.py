"""Deletes messages after their commit, in batches, off the path of the work."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from infra.queue.protocol import FULL_BATCH

if TYPE_CHECKING:
    from infra.queue.protocol import Claim, Queue

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# Nobody waits for a deletion, while each call has its price.
_GATHERING_SECONDS = 0.1


class Acknowledger:
    """Collects claims that are done with and forgets their deliveries together."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._waiting: list[Claim] = []
        self._wanted = asyncio.Event()
        self._is_enough = asyncio.Event()
        self._closing = False
        self._has_failed = False

    def add(self, claim: Claim) -> None:
        """Hand over a claim whose outcome, or whose release, is committed; never waits."""
        self._waiting.append(claim)
        self._wanted.set()
        if len(self._waiting) >= FULL_BATCH:
            self._is_enough.set()

    def close(self) -> None:
        """Let ``run`` end once what was handed over is acknowledged."""
        self._closing = True
        self._wanted.set()
        self._is_enough.set()

    def drop(self, claim: Claim) -> None:
        """Hand over a claim whose lease was lost or left to lapse: its message may come again."""
        self._queue.abandon(claim)

    async def run(self) -> None:
        """Acknowledge what is handed over, until closed."""
        while self._waiting or not self._closing:
            await self._wanted.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(_GATHERING_SECONDS):
                    await self._is_enough.wait()
            await self._acknowledge()

    async def _acknowledge(self) -> None:
        """Acknowledge what fills whole batches; what is left over when nothing more comes."""
        many = len(self._waiting)
        if many > FULL_BATCH and not self._closing:
            many -= many % FULL_BATCH
        claims, self._waiting = self._waiting[:many], self._waiting[many:]
        if not self._waiting and not self._closing:
            self._wanted.clear()
        if not self._closing:
            self._is_enough.clear()
        if not claims:
            return
        try:
            await self._queue.acknowledge(claims)
            self._has_failed = False
        except Exception:  # the messages come again, and find that there is nothing left to do
            if not self._has_failed:
                log.exception("message.not_deleted", messages=len(claims))
            self._has_failed = True
