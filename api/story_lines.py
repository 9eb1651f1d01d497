"""A story as lines of a terminal: when, how long after the step before, and what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from api.timelines import trace_id

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from sqlalchemy import Row

_WIDEST_ERROR = 300


def heading(head: Row[Any], *, ordinal: int | None) -> str:
    """Give what stands above the story of a job."""
    which = "" if ordinal is None else f"input {ordinal} of "
    trace = trace_id(head.traceparent) or "none"
    return (
        f"{head.key}  {head.status}  {which}{_many(head.total, 'input')}"
        f"  kind {head.kind}  owner {head.owner}\n"
        f"correlation {head.correlation_id}  trace {trace}\n"
        f"{'TIME (UTC)':<24}{'AFTER':>10}  WHAT\n"
    )


def line(step: Row[Any], *, of_many: bool) -> str:
    """Give the line of a step; ``of_many``: it must say which input it is about."""
    when = "now" if step.at is None else _time(step.at)
    after = "" if step.since_ms is None else _duration(float(step.since_ms))
    what = (_subject(step) if of_many else "") + _WORDS[step.type](step) + _until(step)
    expected = " (expected)" if step.is_expected else ""
    return f"{when:<24}{after:>10}  {what}{expected}\n"


def _failure(step: Row[Any]) -> str:
    which = "" if step.attempt is None else f"attempt {step.attempt} "
    if step.generation:
        which += f"of redrive {step.generation} "
    ran = "" if step.elapsed_ms is None else f" after {_duration(step.elapsed_ms)}"
    again = "" if step.next_at is None else f"; again at {_time(step.next_at)}"
    return f"{which}failed on {step.worker}{ran}{_error(step)} → {step.outcome}{again}"


def _outcome(step: Row[Any]) -> str:
    ran = "" if step.elapsed_ms is None else f" after a run of {_duration(step.elapsed_ms)}"
    return f"{step.outcome}{ran}{_error(step)}"


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
    # It may come from anywhere: nothing of it may steer the terminal.
    text = "".join(c if c.isprintable() else "·" for c in step.error_message[:_WIDEST_ERROR])
    return f": {step.error_class}: {text}"


def _because(step: Row[Any]) -> str:
    return "" if step.because is None else f": {step.because}"


def _until(step: Row[Any]) -> str:
    return "" if step.until in (None, step.at) else f" (the last at {_time(step.until)})"


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
