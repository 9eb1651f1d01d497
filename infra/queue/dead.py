"""The queue's own DLQ, where SQS puts a message that was received too often."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from infra.clients import speaking_plainly
from infra.queue.limits import BATCH_LIMIT
from infra.queue.received import Received, received

if TYPE_CHECKING:
    from collections.abc import Sequence

    from types_aiobotocore_sqs import SQSClient

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_HIDDEN_SECONDS = 60


class DeadLetterQueue:
    """Receives from the DLQ and deletes what is stored."""

    def __init__(self, client: SQSClient, *, queue_url: str) -> None:
        self._client = client
        self.url = queue_url

    async def receive(self) -> list[Received]:
        """Take up to ten messages, without waiting for any."""
        with speaking_plainly("sqs"):
            answer = await self._client.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=BATCH_LIMIT,
                WaitTimeSeconds=0,
                VisibilityTimeout=_HIDDEN_SECONDS,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
            )
            messages = [received(raw) for raw in answer.get("Messages", ())]
        return [replace(each, reason=each.reason or "received too often") for each in messages]

    async def delete(self, messages: Sequence[Received]) -> None:
        """Delete messages; one that resists comes back and is stored once."""
        with speaking_plainly("sqs"):
            answer = await self._client.delete_message_batch(
                QueueUrl=self.url,
                Entries=[
                    {"Id": str(index), "ReceiptHandle": message.handle}
                    for index, message in enumerate(messages)
                ],
            )
            codes = [failed.get("Code") for failed in answer.get("Failed", ())]
        for code in codes:
            log.warning("message.not_deleted", messages=1, code=code)
