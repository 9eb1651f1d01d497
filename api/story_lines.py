"""A story as lines of a terminal: when, how long after the step before, and what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from api.timelines import trace_id

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from sqlalchemy import Row

_WIDEST_ERROR = 300
_WAITING = ("entry.due", "entry.relayed")


def heading(head: Row[Any], *, ordinal: int | None) -> str:
    """Give what stands above the story of a job."""
    which = "" if ordinal is None else f"input {ordinal} of "
    trace = trace_id(head.traceparent) or "none"
    return (
        f"{head.key}  {head.status}  {which}{_many(head.total, 'input')}"
        f"  kind {head.kind}  owner {_printable(head.owner)}\n"
        f"correlation {head.correlation_id}  trace {trace}\n"
        f"{'TIME (UTC)':<24}{'AFTER':>10}  WHAT\n"
    )


@dataclass(slots=True)
class Line:
    """The line of a step, or of several in a row of which there is nothing else to say."""

    first: Row[Any]
    what: str
    last: dt.datetime | None
    times: int = 1

    def takes(self, other: Line) -> bool:
        """Say whether the other line, which comes next, says the same; if so, count it here."""
        if self.what != other.what:
            return False
        self.last, self.times = other.last, self.times + 1
        return True

    def text(self) -> str:
        """Write it."""
        at, since_ms = self.first.at, self.first.since_ms
        when = "now" if at is None else _time(at)
        after = "" if since_ms is None else _duration(float(since_ms))
        more = [f"{self.times} times"] if self.times > 1 else []
        if self.last != at and self.last is not None:
            more.append(f"the last at {_time(self.last)}")
        several = f" ({', '.join(more)})" if more else ""
        return f"{when:<24}{after:>10}  {self.what}{several}\n"


def line(step: Row[Any], *, of_many: bool, by_relay: bool) -> Line:
    """Give the line of a step.

    ``of_many``: it must say which input it is about; ``by_relay``: what is due goes over SQS.
    """
    what = (_subject(step) if of_many else "") + _WORDS[step.type](step)
    if step.is_expected:
        what += " (expected)"
    elif step.type == "entry.due":
        what += f": waits for {'the relay' if by_relay else 'a consumer'}"
    if step.type in _WAITING and step.because is not None:
        what += f"; {_cut(step.because)}"
    return Line(step, _printable(what), step.at if step.until is None else step.until)


def _failure(step: Row[Any]) -> str:
    which = "" if step.attempt is None else f"attempt {step.attempt} "
    if step.generation:
        which += f"of redrive {step.generation} "
    ran = "" if step.elapsed_ms is None else f" after {_duration(step.elapsed_ms)}"
    again = "" if step.next_at is None else f"; again at {_time(step.next_at)}"
    return f"{which}failed on {step.worker}{ran}{_error(step)} → {step.outcome}{again}"


def _outcome(step: Row[Any]) -> str:
    ran = "" if step.elapsed_ms is None else f" after a run of {_duration(step.elapsed_ms)}"
    return f"{step.outcome}{ran}{_error(step)}{_because(step)}"


def _redrive(step: Row[Any]) -> str:
    number = _many(step.inputs, "input")
    return f"redriven by {step.requested_by}: {number} ({step.outcome}{_because(step)})"


def _subject(step: Row[Any]) -> str:
    if step.ordinal is None:
        return ""
    if step.last_ordinal is None or step.last_ordinal == step.ordinal:
        return f"input {step.ordinal}: "
    what = "attempt" if step.type == "attempt.failed" else "input"
    return f"{_many(step.inputs, what)} of {step.ordinal} to {step.last_ordinal}: "


def _error(step: Row[Any]) -> str:
    if step.error_message is None:
        return ""
    return f": {step.error_class}: {_cut(step.error_message)}"


def _because(step: Row[Any]) -> str:
    return "" if step.because is None else f": {_cut(step.because)}"


def _cut(message: str) -> str:
    return message[:_WIDEST_ERROR]


def _printable(text: str) -> str:
    # Names, classes and messages may come from anywhere: nothing of them may steer the terminal.
    return "".join(c if c.isprintable() else "·" for c in text)


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _time(value: dt.datetime) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1_000:03d}"


def _duration(milliseconds: float) -> str:
    if milliseconds < 1_000:  # noqa: PLR2004 - a second
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1_000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


_WORDS: dict[str, Callable[[Row[Any]], str]] = {
    "job.accepted": lambda step: f"accepted: {_many(step.inputs, 'input')}",
    "job.due": lambda _: "due, as it was scheduled",
    "job.started": lambda _: "started: a worker claimed the first of it",
    "redrive.requested": _redrive,
    "attempt.failed": _failure,
    "input.died": lambda step: f"gave up; fingerprint {step.fingerprint}",
    "input.settled": _outcome,
    "entry.relayed": lambda _: "sent to the queue",
    "entry.due": lambda _: "due",
    "lease.ends": lambda step: f"in hand of {step.worker}, whose lease ends, unless renewed",
    "lease.lapsed": lambda step: f"lapsed: {step.worker} did not come back",
    "entry.held": lambda step: f"held{_because(step)}",
    "entry.parked": lambda step: f"parked{_because(step)}",
    "job.finished": lambda step: f"finished: {step.outcome}{_because(step)}",
    "job.expires": lambda _: "expires",
    "job.pruned": lambda _: "its inputs were removed: their retention was over",
}
