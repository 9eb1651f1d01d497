"""Deletes messages after their commit, in batches, several at once, off the path of the work."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from infra.queue.protocol import FULL_BATCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.queue.protocol import Claim, Queue

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# Nobody waits for a deletion, while each call has its price.
_GATHERING_SECONDS = 0.1
# So many wait for a call at most, without their inputs. An SQS that deletes so little gives them
# back anyway.
_MOST_WAITING = 10_000


class Acknowledger:
    """Collects claims that are done with and forgets their deliveries together.

    A call that takes long holds up no other: ``calls_at_once`` may wait for their answers.
    """

    def __init__(self, queue: Queue, *, calls_at_once: int) -> None:
        self._queue = queue
        self._calls = asyncio.Semaphore(calls_at_once)
        self._waiting: list[Claim] = []
        self._wanted = asyncio.Event()
        self._is_enough = asyncio.Event()
        self._closing = False
        self._has_failed = False
        self._is_full = False

    def add(self, claim: Claim) -> None:
        """Hand over a claim whose outcome, or whose release, is committed; never waits."""
        if len(self._waiting) >= _MOST_WAITING:
            if not self._is_full:
                log.warning(
                    "message.not_deleted", messages=1, error="too many wait; more are not told"
                )
            self._is_full = True
            self._queue.abandon(claim)
            return
        self._waiting.append(replace(claim, inputs=()))
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
        async with asyncio.TaskGroup() as group:
            while self._waiting or not self._closing:
                await self._wanted.wait()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_GATHERING_SECONDS):
                        await self._is_enough.wait()
                await self._calls.acquire()
                group.create_task(self._acknowledge(self._take()), name="acknowledgement")

    def _take(self) -> Sequence[Claim]:
        """Take what fills a call, or what is left over when nothing more comes."""
        claims, self._waiting = self._waiting[:FULL_BATCH], self._waiting[FULL_BATCH:]
        if not self._waiting:
            self._is_full = False
        if not self._closing:
            if not self._waiting:
                self._wanted.clear()
            if len(self._waiting) < FULL_BATCH:
                self._is_enough.clear()
        return claims

    async def _acknowledge(self, claims: Sequence[Claim]) -> None:
        try:
            await self._queue.acknowledge(claims)
            self._has_failed = False
        except Exception:  # the messages come again, and find that there is nothing left to do
            if not self._has_failed:
                log.exception("message.not_deleted", messages=len(claims))
            self._has_failed = True
        finally:
            self._calls.release()
