"""Sending to SQS: pack by count and by bytes, send, and say of each message what became of it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from infra.aws_codes import meaning_of_code
from infra.clients import speaking_plainly
from infra.queue.limits import ATTRIBUTE_LIMIT, BATCH_LIMIT
from schema.errors import Fault, HaulageError, Refusal, Unavailable, Unusable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from types_aiobotocore_sqs import SQSClient
    from types_aiobotocore_sqs.type_defs import (
        BatchResultErrorEntryTypeDef,
        SendMessageBatchRequestEntryTypeDef,
    )

# More than so many that are refused alike are not all at fault.
_MOST_UNCLEAR = 1_000
# What was refused is tried again meanwhile: what was not is no concern of this process any more.
_UNCLEAR_TRIES = 3


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
    """A message that SQS did not take.

    ``means`` says why, as the errors do: ``Refusal``, it never will; ``Fault``, nobody knows yet
    whether this is about the message or the queue; ``Unavailable``, it is worth another try.
    """

    entry_id: int
    reason: str
    means: type[HaulageError]

    @property
    def fatal(self) -> bool:
        """Say whether another try is in vain."""
        return issubclass(self.means, Refusal)


@dataclass(frozen=True, slots=True)
class SendReport:
    """What became of each message: only the ids in ``sent`` were taken.

    ``fault`` says why, when it is the queue that took nothing. ``is_of_one``: by all that is known
    it may as well be the one message that was tried.
    """

    sent: list[int]
    unsent: list[Unsent]
    fault: str | None = None
    is_of_one: bool = False


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
    """Sends batches to one queue, and knows what the queue refuses for its own sake.

    Many codes may be about the message or about the queue. They are the message's if the queue
    took something else meanwhile; until then they are the queue's, which is not ready.
    ``tried_within_seconds``: what is refused now is tried again by then.
    """

    def __init__(
        self,
        client: SQSClient,
        *,
        queue_url: str,
        limit_bytes: int,
        tried_within_seconds: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self.queue_url = queue_url
        self._limit_bytes = limit_bytes
        self._tried_within_seconds = tried_within_seconds
        self._clock = clock
        # When each message was first refused for a reason that is unclear, the oldest first.
        self._unclear_since: dict[int, float] = {}
        # When the last call began of which something was taken.
        self._took_at = -math.inf
        self._refusal: tuple[str, float] | None = None

    def pack(self, messages: Iterable[Outgoing]) -> list[list[Outgoing]]:
        """Split messages into batches that this queue takes."""
        return list(pack(messages, limit_bytes=self._limit_bytes))

    async def send(self, batch: Sequence[Outgoing]) -> SendReport:
        """Send one batch; raises ``Unavailable`` when nothing can be known of any of it."""
        began = self._clock()
        self._forget_unclear(before=began - _UNCLEAR_TRIES * self._tried_within_seconds)
        report = await self._send_whole(batch)
        unclear = {failure.entry_id for failure in report.unsent if failure.means is Fault}
        blamed = [
            message
            for message in batch
            if message.entry_id in unclear and self._is_blamed(message.entry_id, report)
        ]
        if blamed:
            report = await self._tried_once_more(blamed, report)
        sent, unsent = report.sent, report.unsent
        for entry_id in (*sent, *(failure.entry_id for failure in unsent if failure.fatal)):
            self._unclear_since.pop(entry_id, None)
        if sent:
            return SendReport(sent, unsent)
        fault = _fault_of_the_queue(unsent)
        if fault is None:
            return SendReport([], unsent)
        if self._took_at < began:
            self._refusal = fault.reason, self._clock()
        # Several that are refused alike are not all at fault.
        is_of_one = fault.means is Fault and len(self._unclear_since) == 1
        return SendReport([], unsent, fault.reason, is_of_one=is_of_one)

    def _forget_unclear(self, *, before: float) -> None:
        """Forget what others have sent or parked by now, or will refuse to take once more."""
        while self._unclear_since:
            oldest = next(iter(self._unclear_since))
            if self._unclear_since[oldest] >= before:
                return
            del self._unclear_since[oldest]

    def _is_blamed(self, entry_id: int, report: SendReport) -> bool:
        """Say whether the queue took others since it first refused this for unclear reasons."""
        since = self._unclear_since.setdefault(entry_id, self._clock())
        if len(self._unclear_since) > _MOST_UNCLEAR:
            del self._unclear_since[next(iter(self._unclear_since))]
        return bool(report.sent) or self._took_at > since

    async def _tried_once_more(self, blamed: Sequence[Outgoing], report: SendReport) -> SendReport:
        """Send each by itself: the queue may have come back just then, and takes it now."""
        sent = list(report.sent)
        unsent = {failure.entry_id: failure for failure in report.unsent}
        for message in blamed:
            try:
                again = await self._send_whole([message.without_trace()])
            except Unavailable:
                break  # what is not tried remains unclear
            sent += again.sent
            for entry_id in again.sent:
                del unsent[entry_id]
            for failure in again.unsent:
                means = Refusal if failure.means is Fault else failure.means
                unsent[failure.entry_id] = replace(failure, means=means)
        return SendReport(sent, list(unsent.values()))

    async def _send_whole(self, batch: Sequence[Outgoing]) -> SendReport:
        if len(batch) == 1 and batch[0].size_bytes() > self._limit_bytes:
            message = batch[0]
            reason = f"message of {message.size_bytes()} bytes, limit {self._limit_bytes}"
            return SendReport([], [Unsent(message.entry_id, reason, Refusal)])
        try:
            report = await self._send(batch)
        except Unavailable:
            raise
        except (Refusal, Fault) as error:
            return await self._send_apart(batch, error)
        refused = {
            each.entry_id for each in report.unsent if not issubclass(each.means, Unavailable)
        }
        bare = [
            message.without_trace()
            for message in batch
            if message.entry_id in refused and len(message.attributes) > 1
        ]
        if not bare:
            return report
        # What SQS refuses may be the trace alone: the trace is dropped before the message is.
        second = await self._send_more(bare, is_any_sent=bool(report.sent))
        tried_again = {message.entry_id for message in bare}
        kept = [failure for failure in report.unsent if failure.entry_id not in tried_again]
        return SendReport(report.sent + second.sent, kept + second.unsent)

    async def _send_more(self, batch: Sequence[Outgoing], *, is_any_sent: bool) -> SendReport:
        """Send a further part of a batch; what SQS took of it before stays known in any case."""
        try:
            return await self._send_whole(batch)
        except Unavailable as error:
            if not is_any_sent:
                raise
            unsent = [Unsent(each.entry_id, str(error)[:500], type(error)) for each in batch]
            return SendReport([], unsent)

    async def _send_apart(self, batch: Sequence[Outgoing], error: Refusal | Fault) -> SendReport:
        """Send a batch whose call was refused as a whole in halves, down to what spoils it."""
        if len(batch) > 1:
            half = len(batch) // 2
            first = await self._send_whole(batch[:half])
            second = await self._send_more(batch[half:], is_any_sent=bool(first.sent))
            return SendReport(first.sent + second.sent, first.unsent + second.unsent)
        message = batch[0]
        if len(message.attributes) > 1:
            return await self._send_whole([message.without_trace()])
        return SendReport([], [Unsent(message.entry_id, str(error)[:500], type(error))])

    async def _send(self, batch: Sequence[Outgoing]) -> SendReport:
        began = self._clock()
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
                    _meaning_of_entry(failed),
                )
                for failed in answer.get("Failed", ())
            ]
        unmentioned = {message.entry_id for message in batch}.difference(
            sent, (failure.entry_id for failure in unsent)
        )
        unsent += [Unsent(entry_id, "not in the answer", Unavailable) for entry_id in unmentioned]
        if sent:
            self._took_at, self._refusal = began, None
        return SendReport(sent, unsent)

    async def ping(self) -> None:
        """Return when the queue answers and, as far as was tried lately, takes messages."""
        if self._refusal is not None:
            reason, at = self._refusal
            if self._clock() - at < self._tried_within_seconds:
                raise Unusable(f"the queue takes nothing: {reason}")
        with speaking_plainly("sqs"):
            await self._client.get_queue_attributes(
                QueueUrl=self.queue_url, AttributeNames=["QueueArn"]
            )


def _meaning_of_entry(failed: BatchResultErrorEntryTypeDef) -> type[HaulageError]:
    """Say what a code means of one message, as it would of a call."""
    means = meaning_of_code(failed["Code"])
    # What is unknown and not ours passes, as a call that fails on the side of SQS does.
    return Unavailable if means is Fault and not failed.get("SenderFault") else means


def _fault_of_the_queue(unsent: Sequence[Unsent]) -> Unsent | None:
    """Give, of a batch of which nothing was taken, what says that the queue is at fault."""
    for failure in unsent:
        if failure.means is Fault or issubclass(failure.means, Unusable):
            return failure
    passing = [failure for failure in unsent if not failure.fatal]
    # One that fails by itself backs off by itself.
    return passing[0] if len(passing) > 1 else None


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
