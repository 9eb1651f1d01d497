"""Sending to SQS: pack by count and by bytes, send, and say of each message what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infra.clients import speaking_plainly
from infra.queue.limits import ATTRIBUTE_LIMIT, BATCH_LIMIT
from schema.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from types_aiobotocore_sqs import SQSClient
    from types_aiobotocore_sqs.type_defs import SendMessageBatchRequestEntryTypeDef


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send for one outbox entry; ``group`` is the owner, for fair queues."""

    entry_id: int
    body: str
    attributes: dict[str, str]
    group: str

    def size_bytes(self) -> int:
        """Give the size as SQS counts it: body, and name, type and value of each attribute."""
        return len(self.body.encode()) + sum(
            len(name.encode()) + len(b"String") + len(value.encode())
            for name, value in self.attributes.items()
        )

    def without_trace(self) -> Outgoing:
        """Give the message with its correlation id alone: the trace goes before the message."""
        kept = {name: value for name, value in self.attributes.items() if name == "correlation_id"}
        return Outgoing(self.entry_id, self.body, kept, self.group)


@dataclass(frozen=True, slots=True)
class Unsent:
    """A message that SQS did not take: for good when ``fatal``, else worth another try."""

    entry_id: int
    reason: str
    fatal: bool


@dataclass(frozen=True, slots=True)
class SendReport:
    """What became of each message: only the ids in ``sent`` were taken.

    ``fault`` says why when the call failed as a whole.
    """

    sent: list[int]
    unsent: list[Unsent]
    fault: str | None = None


def pack(
    messages: Iterable[Outgoing], *, limit_bytes: int, limit_count: int = BATCH_LIMIT
) -> Iterator[list[Outgoing]]:
    """Split messages into batches that fit SQS's count and total size, in order.

    A message too large by itself loses its trace; one that is too large even so stands alone.
    """
    batch: list[Outgoing] = []
    batch_bytes = 0
    for original in messages:
        fits = original.size_bytes() <= limit_bytes and len(original.attributes) <= ATTRIBUTE_LIMIT
        message = original if fits else original.without_trace()
        size_bytes = message.size_bytes()
        if batch and (len(batch) == limit_count or batch_bytes + size_bytes > limit_bytes):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(message)
        batch_bytes += size_bytes
    if batch:
        yield batch


class SqsSender:
    """Sends batches to one queue."""

    def __init__(self, client: SQSClient, *, queue_url: str, limit_bytes: int) -> None:
        self._client = client
        self.queue_url = queue_url
        self._limit_bytes = limit_bytes

    def pack(self, messages: Iterable[Outgoing]) -> list[list[Outgoing]]:
        """Split messages into batches that this queue takes."""
        return list(pack(messages, limit_bytes=self._limit_bytes))

    async def send(self, batch: Sequence[Outgoing]) -> SendReport:
        """Send one batch; raises ``Unavailable`` when nothing can be known of any of it."""
        if len(batch) == 1 and batch[0].size_bytes() > self._limit_bytes:
            message = batch[0]
            reason = f"message of {message.size_bytes()} bytes, limit {self._limit_bytes}"
            return SendReport([], [Unsent(message.entry_id, reason, fatal=True)])
        try:
            report = await self._send(batch)
        except Refusal as error:
            return await self._send_apart(batch, error)
        refused = {failure.entry_id for failure in report.unsent if failure.fatal}
        bare = [
            message.without_trace()
            for message in batch
            if message.entry_id in refused and len(message.attributes) > 1
        ]
        if not bare:
            return report
        # What SQS refuses may be the trace alone: the trace is dropped before the message is.
        try:
            second = await self._send(bare)
        except Refusal as error:
            second = await self._send_apart(bare, error)
        tried_again = {message.entry_id for message in bare}
        kept = [failure for failure in report.unsent if failure.entry_id not in tried_again]
        return SendReport(report.sent + second.sent, kept + second.unsent)

    async def _send_apart(self, batch: Sequence[Outgoing], error: Refusal) -> SendReport:
        """Send a batch whose call was refused as a whole in halves, down to what spoils it."""
        if len(batch) > 1:
            half = len(batch) // 2
            first, second = await self.send(batch[:half]), await self.send(batch[half:])
            return SendReport(first.sent + second.sent, first.unsent + second.unsent)
        message = batch[0]
        if len(message.attributes) > 1:
            return await self.send([message.without_trace()])
        return SendReport([], [Unsent(message.entry_id, str(error)[:500], fatal=True)])

    async def _send(self, batch: Sequence[Outgoing]) -> SendReport:
        with speaking_plainly("sqs"):
            answer = await self._client.send_message_batch(
                QueueUrl=self.queue_url,
                Entries=[_entry(index, message) for index, message in enumerate(batch)],
            )
            sent = [batch[int(taken["Id"])].entry_id for taken in answer.get("Successful", ())]
            unsent = [
                Unsent(
                    batch[int(failed["Id"])].entry_id,
                    f"{failed.get('Code')}: {failed.get('Message', '')}"[:500],
                    fatal=bool(failed.get("SenderFault")),
                )
                for failed in answer.get("Failed", ())
            ]
        unmentioned = {message.entry_id for message in batch}.difference(
            sent, (failure.entry_id for failure in unsent)
        )
        unsent += [Unsent(entry_id, "not in the answer", fatal=False) for entry_id in unmentioned]
        return SendReport(sent, unsent)

    async def ping(self) -> None:
        """Return when the queue answers."""
        with speaking_plainly("sqs"):
            await self._client.get_queue_attributes(
                QueueUrl=self.queue_url, AttributeNames=["QueueArn"]
            )


def _entry(index: int, message: Outgoing) -> SendMessageBatchRequestEntryTypeDef:
    attributes: Any = {
        name: {"DataType": "String", "StringValue": value}
        for name, value in message.attributes.items()
    }
    return {
        "Id": str(index),
        "MessageBody": message.body,
        "MessageAttributes": attributes,
        "MessageGroupId": message.group,
    }
