"""The actions on messages: send, receive, delete, hide; single and in batches."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tests.stubs.sqs.contents import check, md5_of_attributes, md5_of_body
from tests.stubs.sqs.errors import SqsError, invalid
from tests.stubs.sqs.faults import DropMessages, DuplicateMessages, Fault, ReorderMessages
from tests.stubs.sqs.queue import IN_FLIGHT, VISIBILITY_LIMIT_SECONDS, Message, Poll, Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Entry = dict[str, Any]

BATCH_LIMIT = 10
BATCH_LIMIT_BYTES = 1_048_576
_DELAY_LIMIT_SECONDS = 900
_WAIT_LIMIT_SECONDS = 20
# Unique as UUIDs are, and far cheaper.
_PREFIX = str(uuid4())[:-13]
_numbers = itertools.count(1)
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")


def in_batch(
    entries: object, carry_out: Callable[[Entry], Entry]
) -> tuple[list[Entry], list[Entry]]:
    """Carry out each entry of a batch; give what succeeded and what failed."""
    successful: list[Entry] = []
    failed: list[Entry] = []
    for entry in checked_entries(entries):
        try:
            successful.append({"Id": entry["Id"], **carry_out(entry)})
        except SqsError as error:
            failed.append(failure(entry, error))
    return successful, failed


def checked_entries(entries: object) -> Sequence[Entry]:
    """Give the entries of a batch that SQS takes; raise what it raises for one it does not."""
    if not isinstance(entries, list) or not entries:
        raise SqsError("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(entries) > BATCH_LIMIT:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are 10. You have sent {len(entries)}.",
        )
    ids = [str(entry.get("Id", "")) for entry in entries]
    for id_ in ids:
        if not _ENTRY_ID.fullmatch(id_):
            raise SqsError("InvalidBatchEntryId", "A batch entry id can only contain alphanumeric "
                           "characters, hyphens and underscores, 80 at most.")  # fmt: skip
    if len(set(ids)) != len(ids):
        raise SqsError("BatchEntryIdsNotDistinct", "Two entries of the batch have the same id.")
    return entries


def failure(entry: Entry, error: SqsError) -> Entry:
    """Give the ``Failed`` line of an entry."""
    return {
        "Id": entry["Id"],
        "Code": error.code,
        "Message": error.message,
        "SenderFault": error.is_senders_fault,
    }


def check_batch_bytes(entries: Sequence[Entry]) -> None:
    """Raise when the messages of a batch are too large together."""
    total = 0
    for entry in entries:
        total += len(str(entry.get("MessageBody", "")).encode())
        for name, attribute in (entry.get("MessageAttributes") or {}).items():
            total += len(name.encode()) + sum(len(str(value)) for value in attribute.values())
    if total > BATCH_LIMIT_BYTES:
        raise SqsError(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {BATCH_LIMIT_BYTES} bytes. "
            f"You have sent {total} bytes.",
        )


def send(queue: Queue, entry: Entry, fault: Fault | None) -> Entry:
    """Put one message into the queue; ``queue.serve`` must follow."""
    body: Any = entry.get("MessageBody")
    attributes: dict[str, Any] = entry.get("MessageAttributes") or {}
    check(body, attributes, limit_bytes=int(queue.attributes["MaximumMessageSize"]))
    delay_seconds = _number(
        entry, "DelaySeconds", 0, _DELAY_LIMIT_SECONDS, int(queue.attributes["DelaySeconds"])
    )
    answer = {
        "MessageId": f"{_PREFIX}-{next(_numbers):012x}",
        "MD5OfMessageBody": md5_of_body(body),
    }
    attributes_md5 = md5_of_attributes(attributes)
    if attributes_md5:
        answer["MD5OfMessageAttributes"] = attributes_md5
    copies = 1
    match fault:
        case DropMessages():
            copies = 0
        case DuplicateMessages():
            copies = 2
    for _ in range(copies):
        message = Message(
            answer["MessageId"],
            body,
            answer["MD5OfMessageBody"],
            attributes,
            attributes_md5,
            entry.get("MessageGroupId"),
        )
        queue.put(message, delay_seconds)
    if isinstance(fault, ReorderMessages):
        queue.ready.reverse()
    return answer


def receive(queue: Queue, parameters: Entry) -> Entry | Poll:
    """Take what is ready, or give a poll that will."""
    most = _number(parameters, "MaxNumberOfMessages", 1, BATCH_LIMIT, 1)
    hidden = _number(
        parameters, "VisibilityTimeout", 0, VISIBILITY_LIMIT_SECONDS,
        int(queue.attributes["VisibilityTimeout"]),
    )  # fmt: skip
    wait = _number(
        parameters, "WaitTimeSeconds", 0, _WAIT_LIMIT_SECONDS,
        int(queue.attributes["ReceiveMessageWaitTimeSeconds"]),
    )  # fmt: skip
    taken = queue.take(most, hidden)
    if taken or not wait:
        return deliveries(queue, taken, parameters)
    return queue.poll(most, hidden, wait)


def deliveries(queue: Queue, taken: Sequence[Message], parameters: Entry) -> Entry:
    """Give the answer to a receive."""
    if not taken:
        return {}
    of_system = {
        *(parameters.get("MessageSystemAttributeNames") or ()),
        *(parameters.get("AttributeNames") or ()),
    }
    wanted: Sequence[str] = parameters.get("MessageAttributeNames") or ()
    messages: list[Entry] = []
    for message in taken:
        line: Entry = {
            "MessageId": message.id,
            "ReceiptHandle": f"{queue.tag}-{message.number}-{message.receives}",
            "MD5OfBody": message.body_md5,
            "Body": message.body,
        }
        if of_system:
            line["Attributes"] = _system_attributes(message, of_system)
        if wanted and message.attributes:
            attributes, digest = _chosen_attributes(message, wanted)
            if attributes:
                line["MessageAttributes"] = attributes
                line["MD5OfMessageAttributes"] = digest
        messages.append(line)
    return {"Messages": messages}


def delete(queue: Queue, entry: Entry) -> Entry:
    """Delete by the newest handle; an older one is answered alike and does nothing."""
    message = _by_handle(queue, entry)
    if message is not None:
        queue.delete(message)
    return {}


def change_visibility(queue: Queue, entry: Entry) -> Entry:
    """Hide anew, twelve hours from the receive at most; ``queue.serve`` must follow."""
    seconds = _number(entry, "VisibilityTimeout", 0, VISIBILITY_LIMIT_SECONDS, None)
    message = _by_handle(queue, entry)
    if message is None:
        raise invalid(
            f"Value {entry['ReceiptHandle']} for parameter ReceiptHandle is invalid. Reason: "
            "Message does not exist or is not available for visibility timeout change."
        )
    if message.state != IN_FLIGHT:
        raise SqsError("MessageNotInflight", "The message is not in flight.")
    if queue.seconds_since_receive(message) + seconds > VISIBILITY_LIMIT_SECONDS:
        raise invalid(
            f"Value {seconds} for parameter VisibilityTimeout is invalid. Reason: Total "
            "VisibilityTimeout for the message is beyond the limit [43200 seconds]."
        )
    queue.change_visibility(message, seconds)
    return {}


def _by_handle(queue: Queue, entry: Entry) -> Message | None:
    handle = str(entry.get("ReceiptHandle", ""))
    parts = handle.split("-")
    try:
        tag, number, receipt = map(int, parts)
    except ValueError:
        raise _bad_handle(handle) from None
    if tag != queue.tag:
        raise _bad_handle(handle)
    message = queue.find(number)
    return message if message is not None and message.receives == receipt else None


def _bad_handle(handle: str) -> SqsError:
    return SqsError(
        "ReceiptHandleIsInvalid", f'The input receipt handle "{handle}" is not a valid one.'
    )


def _number(entry: Entry, name: str, low: int, high: int, default: int | None) -> int:
    value = entry.get(name, default)
    if value is None:
        raise SqsError("MissingParameter", f"The request must contain the parameter {name}.")
    if type(value) is not int or not low <= value <= high:
        raise invalid(
            f"Value {value} for parameter {name} is invalid. Reason: Must be between {low} and "
            f"{high}, if provided."
        )
    return value


def _system_attributes(message: Message, wanted: set[str]) -> dict[str, str]:
    known = {
        "ApproximateReceiveCount": str(message.receives),
        "SentTimestamp": str(message.sent_ms),
        "ApproximateFirstReceiveTimestamp": str(message.first_received_ms),
        "SenderId": "000000000000",
    }
    if message.group is not None:
        known["MessageGroupId"] = message.group
    if "All" in wanted:
        return known
    return {name: value for name, value in known.items() if name in wanted}


def _chosen_attributes(
    message: Message, wanted: Sequence[str]
) -> tuple[dict[str, Any], str | None]:
    if "All" in wanted or ".*" in wanted:
        return dict(message.attributes), message.attributes_md5
    prefixes = tuple(name.removesuffix("*").removesuffix(".") for name in wanted if "*" in name)
    chosen = {
        name: value
        for name, value in message.attributes.items()
        if name in wanted or (prefixes and name.startswith(prefixes))
    }
    return chosen, md5_of_attributes(chosen)
