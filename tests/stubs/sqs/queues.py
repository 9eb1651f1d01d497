"""The queues of one stub, and the actions on queues themselves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.stubs.sqs.errors import SqsError, invalid
from tests.stubs.sqs.queue import Queue

if TYPE_CHECKING:
    import asyncio

ACCOUNT = "000000000000"
_QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_DEFAULTS = {
    "VisibilityTimeout": "30",
    "DelaySeconds": "0",
    "ReceiveMessageWaitTimeSeconds": "0",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
}
_COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
_READ_ONLY = ("QueueArn", "CreatedTimestamp", "LastModifiedTimestamp", *_COUNTS)
# Taken and kept, though they change nothing here.
_OTHER_NAMES = frozenset({
    "Policy", "RedrivePolicy", "RedriveAllowPolicy", "KmsMasterKeyId",
    "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled",
})  # fmt: skip


class Queues:
    """All queues by name."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, base_url: str, region: str) -> None:
        self._loop = loop
        self._base_url = base_url
        self._region = region
        self._by_name: dict[str, Queue] = {}

    def of(self, parameters: dict[str, Any]) -> Queue:
        """Give the queue that a request names by its URL."""
        url = parameters.get("QueueUrl")
        if not isinstance(url, str):
            raise SqsError("MissingParameter", "The request must contain the parameter QueueUrl.")
        queue = self._by_name.get(url.rsplit("/", 1)[-1])
        if queue is None:
            raise _no_such_queue()
        return queue

    def create(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """CreateQueue: the same again is no error, other attributes are."""
        name = parameters.get("QueueName", "")
        if name.endswith(".fifo"):
            raise SqsError("UnsupportedOperation", "This stub has standard queues only.")
        if not _QUEUE_NAME.fullmatch(name):
            raise invalid(
                "Can only include alphanumeric characters, hyphens, or underscores. "
                "1 to 80 in length"
            )
        given = _checked(parameters.get("Attributes") or {})
        queue = self._by_name.get(name)
        if queue is None:
            queue = self._by_name[name] = Queue(name, self._loop)
            queue.attributes = _DEFAULTS | given
        elif any(queue.attributes.get(key) != value for key, value in given.items()):
            raise SqsError(
                "QueueNameExists", "A queue already exists with the same name and other attributes."
            )
        return {"QueueUrl": self._url(name)}

    def get_url(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """GetQueueUrl."""
        if parameters.get("QueueName") not in self._by_name:
            raise _no_such_queue()
        return {"QueueUrl": self._url(parameters["QueueName"])}

    def list(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """ListQueues, in one page."""
        prefix = parameters.get("QueueNamePrefix") or ""
        names = [name for name in self._by_name if name.startswith(prefix)]
        return {"QueueUrls": [self._url(name) for name in names]} if names else {}

    def delete(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """DeleteQueue."""
        queue = self.of(parameters)
        del self._by_name[queue.name]
        queue.purge()
        queue.close()
        return {}

    def purge(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """PurgeQueue, at once; AWS's wait of a minute between two is not kept."""
        self.of(parameters).purge()
        return {}

    def set_attributes(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """SetQueueAttributes."""
        self.of(parameters).attributes |= _checked(parameters.get("Attributes") or {})
        return {}

    def get_attributes(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """GetQueueAttributes."""
        queue = self.of(parameters)
        arn = f"arn:aws:sqs:{self._region}:{ACCOUNT}:{queue.name}"
        created = str(queue.created_seconds)
        counts = dict(zip(_COUNTS, map(str, queue.counts()), strict=True))
        known = queue.attributes | counts
        known |= {"QueueArn": arn, "CreatedTimestamp": created, "LastModifiedTimestamp": created}
        names = parameters.get("AttributeNames") or ()
        for name in names:
            if name != "All" and name not in known and name not in _OTHER_NAMES:
                raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
        chosen = known if "All" in names else {n: known[n] for n in names if n in known}
        return {"Attributes": chosen} if chosen else {}

    def close(self) -> None:
        """End every wait."""
        for queue in self._by_name.values():
            queue.close()

    def _url(self, name: str) -> str:
        return f"{self._base_url}/{ACCOUNT}/{name}"


def _checked(attributes: dict[str, str]) -> dict[str, str]:
    for name, value in attributes.items():
        if name in _DEFAULTS:
            if not value.isdigit():
                raise SqsError("InvalidAttributeValue", f"Invalid value for the parameter {name}.")
        elif name in _READ_ONLY or name not in _OTHER_NAMES:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
    return attributes


def _no_such_queue() -> SqsError:
    return SqsError("QueueDoesNotExist", "The specified queue does not exist.")
