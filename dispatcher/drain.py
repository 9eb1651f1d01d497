"""Empties the queue's own DLQ: keeps each message, and lets the database say what it means."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import structlog

from dispatcher.bulkhead import Bulkhead
from schema.statements.parked import reconcile_messages, store_dead_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Row
    from sqlalchemy.ext.asyncio import AsyncConnection

    from infra.database import Database
    from infra.queue.dead import DeadLetterQueue
    from infra.queue.received import Received

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Drain:
    """A message that died says nothing of its inputs: what still waits for one is sent again."""

    name = "drain"

    def __init__(
        self, database: Database, queue: DeadLetterQueue, *, wake: Callable[[], None]
    ) -> None:
        self._bulkhead = Bulkhead(database)
        self._queue = queue
        self._wake = wake

    async def once(self) -> int:
        """Receive up to ten messages; store, reconcile and commit each, and only then delete it."""
        messages = {message.message_id: message for message in await self._queue.receive()}
        self._bulkhead.begin()
        kept = [message for message in messages.values() if await self._keep(message)]
        if kept:
            await self._queue.delete(kept)
        return len(kept)

    async def _keep(self, message: Received) -> bool:
        """Store a message and say what it means; say whether that could be done."""

        async def unit(connection: AsyncConnection) -> Row[Any] | None:
            await connection.execute(store_dead_messages(self._queue.url, _columns([message])))
            judged = await connection.execute(reconcile_messages([message.message_id]))
            return judged.one_or_none()

        row: Row[Any] | None = None
        with self._bulkhead.compartment(message.message_id) as part:
            row = await self._bulkhead.run(unit)
        if part.news is not None:
            log.error("drain.failed", message_id=message.message_id, exc_info=part.news)
        if part.error is not None:
            return False
        if row is not None and row.resolution is not None:
            log.warning(
                "drain.resolved",
                message_id=message.message_id,
                entry=row.entry_id,
                job=row.job_key,
                correlation_id=message.message and message.message.trace.correlation_id,
                resolution=row.resolution,
                receive_count=message.receive_count,
            )
            if row.resolution == "requeued":
                self._wake()
        else:
            log.error(
                "drain.parked",
                message_id=message.message_id,
                reason=message.reason,
                remedy="read table parked_message; reprocess or dismiss it",
            )
        return True


def _columns(messages: Sequence[Received]) -> dict[str, list[Any]]:
    named = [message.message for message in messages]
    return {
        "message_ids": [message.message_id for message in messages],
        "reasons": [message.reason for message in messages],
        "bodies": [message.body for message in messages],
        "attributes": [json.dumps(message.attributes) for message in messages],
        "entry_ids": [message and message.entry_id for message in named],
        "job_ids": [message and message.job_id for message in named],
        "receive_counts": [message.receive_count for message in messages],
    }
