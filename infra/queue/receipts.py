"""What is done with the receipts of messages: hide each for longer, or delete it."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from infra.clients import speaking_plainly
from infra.queue.limits import BATCH_LIMIT, HIDDEN_LIMIT_SECONDS
from schema.errors import HaulageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from types_aiobotocore_sqs import SQSClient

    from schema.message import Message

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Item = TypeVar("Item")

_DELETE_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Delivery:
    """One receipt of one message: the handle, and when it came (monotonic seconds).

    ``receive_count`` says how often the message has come by now, this time included.
    """

    handle: str
    received_at: float
    message: Message
    receive_count: int


class Receipts:
    """Hides and deletes messages of one queue; what cannot be done is told, and raises nothing."""

    def __init__(
        self, client: SQSClient, *, queue_url: str, patience_seconds: float, calls_at_once: int
    ) -> None:
        self._client = client
        self._queue_url = queue_url
        self._patience_seconds = patience_seconds
        self._calls_at_once = calls_at_once

    async def in_calls(
        self, call: Callable[[Sequence[Item]], Awaitable[None]], items: Sequence[Item]
    ) -> None:
        """Make a call for each ten, several at once: each may take long, and fails by itself."""
        batches = _batches(items)

        async def one_after_the_other() -> None:
            for batch in batches:
                await call(batch)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._calls_at_once, math.ceil(len(items) / BATCH_LIMIT))):
                group.create_task(one_after_the_other(), name="sqs calls")

    async def hide(self, wishes: Sequence[tuple[Delivery, int]]) -> None:
        """Hide up to ten messages, each for so many seconds from now; what fails is told."""
        if not wishes:
            return
        now = time.monotonic()
        entries: list[Any] = []
        for index, (delivery, seconds) in enumerate(wishes):
            left = HIDDEN_LIMIT_SECONDS - math.ceil(now - delivery.received_at) - 1
            entries.append(
                {
                    "Id": str(index),
                    "ReceiptHandle": delivery.handle,
                    "VisibilityTimeout": max(0, min(seconds, left)),
                }
            )
        try:
            # The next wish comes soon, and says more.
            async with asyncio.timeout(self._patience_seconds):
                with speaking_plainly("sqs"):
                    answer = await self._client.change_message_visibility_batch(
                        QueueUrl=self._queue_url, Entries=entries
                    )
                    codes = [failed.get("Code") for failed in answer.get("Failed", ())]
        except (HaulageError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            log.warning("message.not_hidden", messages=len(wishes), error=reason)
            return
        for code in codes:
            # The message is gone or its receipt lapsed: the lease in Postgres decides.
            log.info("message.not_hidden", code=code, messages=1)

    async def delete(self, handles: Sequence[str]) -> None:
        """Delete messages, call after call, in several tries each; what fails is told."""
        for batch in _batches(handles):
            left = batch
            for round_number in range(1, _DELETE_ROUNDS + 1):
                left = await self._delete_batch(left, last=round_number == _DELETE_ROUNDS)
                if not left:
                    break

    async def _delete_batch(self, handles: Sequence[str], *, last: bool) -> Sequence[str]:
        """Delete up to ten messages; return the handles worth another try."""
        try:
            with speaking_plainly("sqs"):
                answer = await self._client.delete_message_batch(
                    QueueUrl=self._queue_url,
                    Entries=[
                        {"Id": str(index), "ReceiptHandle": handle}
                        for index, handle in enumerate(handles)
                    ],
                )
                failed = [(handles[int(each["Id"])], each) for each in answer.get("Failed", ())]
        except HaulageError as error:
            if last:
                log.warning("message.not_deleted", messages=len(handles), error=str(error))
            return handles
        again: list[str] = []
        for handle, why in failed:
            if not why.get("SenderFault") and not last:
                again.append(handle)
            else:
                log.warning("message.not_deleted", messages=1, code=why.get("Code"))
        return again


def _batches(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Give the items in as few parts as calls are needed for them."""
    return (items[at : at + BATCH_LIMIT] for at in range(0, len(items), BATCH_LIMIT))
