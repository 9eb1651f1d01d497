"""The errors of SQS: the modelled name, and the older code that SDKs show to their callers."""

from __future__ import annotations

_QUERY_PREFIX = "AWS.SimpleQueueService."
_PREFIXED = frozenset({
    "BatchEntryIdsNotDistinct", "BatchRequestTooLong", "EmptyBatchRequest",
    "InvalidBatchEntryId", "MessageNotInflight", "PurgeQueueInProgress",
    "TooManyEntriesInBatchRequest", "UnsupportedOperation",
})  # fmt: skip
_RENAMED = {
    "QueueDoesNotExist": _QUERY_PREFIX + "NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    "AccessDeniedException": "AccessDenied",
}
_SERVER_FAULT = 500


class SqsError(Exception):
    """A call that SQS refuses as a whole."""

    def __init__(self, name: str, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.name = name
        self.message = message
        self.status = status

    @property
    def code(self) -> str:
        """Give the code of the query protocol, which SDKs report."""
        if self.name in _PREFIXED:
            return _QUERY_PREFIX + self.name
        return _RENAMED.get(self.name, self.name)

    @property
    def is_senders_fault(self) -> bool:
        """Say whose fault it is."""
        return self.status < _SERVER_FAULT


def invalid(reason: str) -> SqsError:
    """Make the error for a value out of its range."""
    return SqsError("InvalidParameterValue", reason)
