"""Empties the queue's own DLQ: keeps each message, and lets the database say what it means."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import structlog

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
        self._database = database
        self._queue = queue
        self._wake = wake

    async def once(self) -> int:
        """Receive, store and reconcile, commit, and only then delete up to ten messages."""
        by_id = {message.message_id: message for message in await self._queue.receive()}
        if not by_id:
            return 0
        messages = list(by_id.values())

        async def unit(connection: AsyncConnection) -> Sequence[Row[Any]]:
            await connection.execute(store_dead_messages(self._queue.url, _columns(messages)))
            return (await connection.execute(reconcile_messages(list(by_id)))).all()

        resolved = {row.message_id: row for row in await self._database.run(unit)}
        await self._queue.delete(messages)
        for message in messages:
            row = resolved.get(message.message_id)
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
            else:
                log.error(
                    "drain.parked",
                    message_id=message.message_id,
                    reason=message.reason,
                    remedy="read table parked_message; reprocess or dismiss it",
                )
        if any(row.resolution == "requeued" for row in resolved.values()):
            self._wake()
        return len(messages)


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
