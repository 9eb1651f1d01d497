"""What came out of a queue of SQS, in a form that Postgres takes, whoever sent it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from schema.errors import Undecodable
from schema.message import Message, decode

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from uuid import UUID

    from infra.queue.receipts import Delivery

_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Received:
    """One receipt of one message; ``message`` is what it says, or null with the ``reason`` why not.

    Its texts can be stored: they have no NUL, and no half of a surrogate pair.
    """

    message_id: str
    handle: str
    body: str
    attributes: dict[str, str]
    receive_count: int
    message: Message | None
    reason: str


@dataclass(slots=True)
class Polled:
    """What one poll brought: ten messages at most, by what is to be done about them."""

    many: int
    # By entry: to be claimed, and then those of which nothing could be.
    deliveries: dict[int, Delivery] = field(default_factory=dict)
    # Copies of one of these, messages of a kind that is not wanted now or of an entry that cannot
    # be claimed, of an unknown kind, and what is none of ours.
    again: list[Delivery] = field(default_factory=list)
    unwanted: list[Delivery] = field(default_factory=list)
    early: list[Delivery] = field(default_factory=list)
    foreign: list[Received] = field(default_factory=list)

    def wanted(self, shunned: Container[UUID]) -> dict[int, UUID]:
        """Give the entries to be claimed, and their jobs, which are none of the shunned."""
        jobs = {entry_id: each.message.job_id for entry_id, each in self.deliveries.items()}
        return {entry_id: job_id for entry_id, job_id in jobs.items() if job_id not in shunned}

    @property
    def left(self) -> int:
        """Give how many messages brought no claim."""
        beside = len(self.again) + len(self.unwanted) + len(self.early) + len(self.foreign)
        return len(self.deliveries) + beside


def received(raw: Mapping[str, Any]) -> Received:
    """Read a message as botocore gives it; one that is not ours is no error here."""
    body = raw.get("Body", "")
    attributes = {
        _storable(name): _storable(value["StringValue"])
        for name, value in (raw.get("MessageAttributes") or {}).items()
        if isinstance(value.get("StringValue"), str)
    }
    message, reason = None, ""
    try:
        message = decode(body, attributes)
    except Undecodable as error:
        reason = _storable(str(error))
    count = (raw.get("Attributes") or {}).get("ApproximateReceiveCount", "0")
    return Received(
        message_id=raw["MessageId"],
        handle=raw["ReceiptHandle"],
        body=_storable(body),
        attributes=attributes,
        receive_count=int(count),
        message=message,
        reason=reason,
    )


def _storable(text: str) -> str:
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)
