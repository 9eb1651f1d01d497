"""What can come of an input: a closed set, and the pure decision of what follows from each."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never

from schema.lifecycle import InputStatus
from schema.limits import MOST_BACKOFF_BASE_SECONDS, MOST_BACKOFF_CAP_SECONDS, check_number
from schema.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Mapping

MESSAGE_LIMIT = 2_000
# What is longer is cut before a pattern sees it: messages are foreign, and may be megabytes.
_LOOKED_AT = 8 * 1024
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_VARIABLE = re.compile(
    r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}|\d+|'[^']*'|\"[^\"]*\"", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A verified object in storage; ``natural_key`` names it within its owner and kind."""

    natural_key: str
    uri: str
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The work is done. ``reused`` says whether an earlier file served (null: no file)."""

    result: Mapping[str, Any] = field(default_factory=dict)
    artifact: Artifact | None = None
    reused: bool | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """Nothing had to be done."""

    reason: str


@dataclass(frozen=True, slots=True)
class Missing:
    """What the input names does not exist."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The input can never be processed."""

    error_class: str
    message: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed; another may not. ``retry_after_seconds`` is what the neighbour asked."""

    error_class: str
    message: str
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Lapsed:
    """The worker vanished: its lease ran out before it said what came of the input."""

    worker: str


Outcome = Succeeded | Skipped | Missing | Refused | Failed | Lapsed


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter, in seconds."""

    base_seconds: float = 4.0
    cap_seconds: float = 900.0

    def __post_init__(self) -> None:
        check_number("backoff base_seconds", self.base_seconds, most=MOST_BACKOFF_BASE_SECONDS)
        check_number(
            "backoff cap_seconds",
            self.cap_seconds,
            least=self.base_seconds,
            most=MOST_BACKOFF_CAP_SECONDS,
        )

    def delay(self, attempt: int, jitter: float) -> float:
        """Give the delay after attempt number ``attempt`` (from 1); ``jitter`` lies in [0, 1)."""
        ceiling = min(self.cap_seconds, self.base_seconds * 2.0 ** min(attempt - 1, 32))
        return ceiling * jitter


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is written of an input: its status and, when it goes on, after how many seconds."""

    status: InputStatus
    delay_seconds: float | None = None
    error_class: str | None = None
    error_message: str | None = None


_DONE = Verdict(InputStatus.SUCCEEDED)


def decide(
    outcome: Outcome, *, attempt: int, max_attempts: int, backoff: Backoff, jitter: float
) -> Verdict:
    """Decide what follows from the outcome of attempt number ``attempt`` (from 1)."""
    match outcome:
        case Succeeded():
            return _DONE
        case Skipped(reason):
            return Verdict(InputStatus.SKIPPED, error_message=told(reason))
        case Missing(reason):
            return Verdict(InputStatus.NOT_FOUND, None, "NotFound", told(reason))
        case Refused(error_class, message):
            return Verdict(InputStatus.DLQ, None, error_class, told(message))
        case Failed(error_class, message, retry_after_seconds):
            if attempt >= max_attempts:
                return Verdict(InputStatus.DLQ, None, error_class, told(message))
            asked = min(retry_after_seconds or 0.0, backoff.cap_seconds)
            delay = max(backoff.delay(attempt, jitter), asked)
            return Verdict(InputStatus.RETRY_WAIT, delay, error_class, told(message))
        case Lapsed(worker):
            message = told(f"worker {worker} did not settle the input before its lease ended")
            if attempt >= max_attempts:
                return Verdict(InputStatus.DLQ, None, "WorkerLost", message)
            delay = backoff.delay(attempt, jitter)
            return Verdict(InputStatus.PENDING, delay, "WorkerLost", message)
        case _:
            assert_never(outcome)


def told(message: str) -> str:
    """Make a message fit to store and to show: without credentials, and as ``clean`` makes it."""
    return clean(redact(message))


def clean(message: str) -> str:
    """Make a message fit to store and to log: printable and at most ``MESSAGE_LIMIT`` long."""
    printable = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", message[:_LOOKED_AT]).strip()
    return printable[:MESSAGE_LIMIT] or "(no message)"


def fingerprint(kind: str, error_class: str, message: str) -> str:
    """Name the cause of a failure: equal for messages that differ in numbers and quoted parts."""
    shape = _VARIABLE.sub("?", message[:_LOOKED_AT])
    return hashlib.sha256(f"{kind}\n{error_class}\n{shape}".encode()).hexdigest()[:16]
