"""The queue's own DLQ, where SQS puts a message that was received too often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from infra.clients import speaking_plainly
from schema.errors import Undecodable
from schema.message import Message, decode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from types_aiobotocore_sqs import SQSClient

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

BATCH_LIMIT = 10
_HIDDEN_SECONDS = 60


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """One message of the DLQ; ``message`` is what it says, or null with the ``reason`` why not."""

    message_id: str
    handle: str
    body: str
    attributes: dict[str, str]
    receive_count: int
    message: Message | None
    reason: str


class DeadLetterQueue:
    """Receives from the DLQ and deletes what is stored."""

    def __init__(self, client: SQSClient, *, queue_url: str) -> None:
        self._client = client
        self.url = queue_url

    async def receive(self) -> list[DeadMessage]:
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
        return [_read(raw) for raw in answer.get("Messages", ())]

    async def delete(self, messages: Sequence[DeadMessage]) -> None:
        """Delete messages; one that resists comes back and is stored once."""
        with speaking_plainly("sqs"):
            answer = await self._client.delete_message_batch(
                QueueUrl=self.url,
                Entries=[
                    {"Id": str(index), "ReceiptHandle": message.handle}
                    for index, message in enumerate(messages)
                ],
            )
        for failed in answer.get("Failed", ()):
            log.warning("message.not_deleted", messages=1, code=failed.get("Code"))


def _read(raw: Mapping[str, Any]) -> DeadMessage:
    attributes = {
        name: value["StringValue"]
        for name, value in (raw.get("MessageAttributes") or {}).items()
        if isinstance(value.get("StringValue"), str)
    }
    body = str(raw.get("Body", ""))
    message, reason = None, "received too often"
    try:
        message = decode(body, attributes)
    except Undecodable as error:
        reason = str(error)
    count = str((raw.get("Attributes") or {}).get("ApproximateReceiveCount", "0"))
    return DeadMessage(
        message_id=raw["MessageId"],
        handle=raw["ReceiptHandle"],
        body=body.replace("\x00", "\N{REPLACEMENT CHARACTER}"),
        attributes=attributes,
        receive_count=int(count) if count.isdigit() else 0,
        message=message,
        reason=reason,
    )
