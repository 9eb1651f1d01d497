"""Every error that crosses a module boundary.

HaulageError
├── Refusal            never retry: the request or the input itself is at fault
│   ├── InvalidInput   an input's own content cannot be processed
│   ├── NotFound       what the input names does not exist
│   └── Undecodable    a message is not one of ours, or of a version we do not know
├── Fault              retry later: a neighbour failed; ``retry_after_seconds`` when it said when
│   └── Unavailable    a neighbour (database, queue, storage) is away
│       └── Unusable   it answers, but what we need there is missing or forbidden to us
├── Skip               a processor decided that there is nothing to do
├── LeaseLost          somebody else holds the claim now: stop quietly, write nothing
└── Misconfigured      the process must not start; names the setting and the remedy
"""

from __future__ import annotations


class HaulageError(Exception):
    """Root of the tree; catch it nowhere, catch its branches."""


class Refusal(HaulageError):
    """Retrying cannot help."""


class InvalidInput(Refusal):
    """The input's own content cannot be processed."""


class NotFound(Refusal):
    """What the input names does not exist."""


class Undecodable(Refusal):
    """A message that is not ours, or of a version this reader does not know."""


class Fault(HaulageError):
    """A neighbour failed; trying again may help."""

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(Fault):
    """A neighbour is away altogether."""


class Unusable(Unavailable):
    """A neighbour answers, but our queue or bucket is missing or closed to us: not ready.

    Somebody has to act, and once they have, work goes on by itself.
    """


class Skip(HaulageError):
    """A processor found that this input needs no work; the message says why."""


class LeaseLost(HaulageError):
    """The claim lapsed or was taken over; whatever this worker knows is void."""


class Misconfigured(HaulageError):
    """The process must not start; the message names the setting and the remedy."""
