"""What can be made to go wrong: scripted per action, used up call by call."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Call:
    """A call that arrived: the action, such as ``SendMessageBatch``, and its parameters."""

    action: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refuse:
    """The whole call fails, and nothing of it is done: an outage, throttling, a denial."""

    name: str = "InternalError"
    status: int = 500
    message: str = "scripted"


@dataclass(frozen=True, slots=True)
class FailEntries:
    """The batch answers 200, with these entries (by position) in ``Failed`` and not done."""

    positions: tuple[int, ...]
    code: str = "InternalError"
    sender_fault: bool = False


@dataclass(frozen=True, slots=True)
class BlackHole:
    """No answer ever comes; ``done`` says whether the call took effect all the same."""

    done: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is torn down instead of an answer; ``done`` as for a black hole."""

    done: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """Something in between answers instead, and nothing of the call is done."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Slow:
    """The call is done at once and answered after the delay."""

    seconds: float


@dataclass(frozen=True, slots=True)
class EmptyReceive:
    """A receive brings nothing at once, whatever the backlog: SQS at its in-flight limit."""


@dataclass(frozen=True, slots=True)
class DropMessages:
    """A send is answered as taken, and its messages are never delivered."""


@dataclass(frozen=True, slots=True)
class DuplicateMessages:
    """A send puts each of its messages into the queue twice, under one message id."""


@dataclass(frozen=True, slots=True)
class ReorderMessages:
    """Each message sent turns the order of what is ready around."""


Fault = (
    Refuse
    | FailEntries
    | BlackHole
    | Reset
    | Page
    | Slow
    | EmptyReceive
    | DropMessages
    | DuplicateMessages
    | ReorderMessages
)

THROTTLED = Refuse("RequestThrottled", 400, "Rate exceeded")
ACCESS_DENIED = Refuse("AccessDeniedException", 403, "Access to the resource is denied.")
TOKEN_EXPIRED = Refuse("ExpiredTokenException", 403, "The security token has expired.")


class Faults:
    """The script: what comes ``next``, what happens ``always``, and a hook that may decide."""

    def __init__(self) -> None:
        self.hook: Callable[[Call], Fault | None] | None = None
        self._next: dict[str, deque[Fault | None]] = defaultdict(deque)
        self._always: dict[str, Fault] = {}

    def next(self, action: str, *faults: Fault | None) -> None:
        """Let the next calls of the action meet these faults, in order; None: all goes well."""
        self._next[action].extend(faults)

    def always(self, action: str, fault: Fault) -> None:
        """Let every call of the action meet the fault, until ``clear``."""
        self._always[action] = fault

    def clear(self) -> None:
        """Forget the script."""
        self.hook = None
        self._next.clear()
        self._always.clear()

    def pick(self, action: str, parameters: dict[str, Any]) -> Fault | None:
        """Give the fault that this call meets, if any."""
        if self.hook is not None:
            fault = self.hook(Call(action, parameters))
            if fault is not None:
                return fault
        waiting = self._next.get(action)
        if waiting:
            return waiting.popleft()
        return self._always.get(action)
