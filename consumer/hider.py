"""Keeps the messages of held claims from coming again, off the path of the leases."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from schema.errors import HaulageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.queue.protocol import Claim, Queue

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Hider:
    """Carries out the newest wish; one that comes while it is at work replaces the one before.

    However long the queue takes, it does one thing at a time, and nothing piles up.
    """

    def __init__(self, queue: Queue, *, lease_seconds: float) -> None:
        self._queue = queue
        self._lease_seconds = lease_seconds
        self._wish: Sequence[Claim] = ()
        self._wished = asyncio.Event()

    def hide(self, claims: Sequence[Claim]) -> None:
        """Ask that these deliveries be not repeated for another lease; never waits."""
        self._wish = claims
        self._wished.set()

    async def run(self) -> None:
        """Do what is asked for, until cancelled."""
        while True:
            await self._wished.wait()
            self._wished.clear()
            claims, self._wish = self._wish, ()
            try:
                await self._queue.extend(claims, self._lease_seconds)
            except HaulageError as error:
                # The lease in Postgres holds; a repeated message finds the entry busy.
                log.warning("lease.message_not_hidden", error=str(error))
            except Exception:  # for the same reason, whatever it is
                log.exception("lease.message_not_hidden")
