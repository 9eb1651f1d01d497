"""Logs: one wide, structured event per unit of work, JSON in containers, readable on a terminal.

The correlation id and the job travel in context variables, so that every line written while a
unit of work runs carries them, whoever writes it.
"""

from __future__ import annotations

import logging
import re
import secrets
import sys
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
import structlog.tracebacks

from infra.sampling import Sample
from infra.telemetry.redaction import redact_event, render_json
from schema.redaction import CUT, TEXT_LIMIT, redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping

    from structlog.typing import ExcInfo

    from infra.settings import Settings
    from schema.message import Trace

CORRELATION_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_PARTS = 4  # of a traceparent: version, trace, span, flags
_MOST_FRAMES = 20
_MOST_LINES = 120
# Libraries that log every call, or what our own events say, at INFO; their warnings still pass.
_QUIET = ("aiobotocore", "aioboto3", "botocore", "asyncio", "alembic")
# What it warns of comes of any client; what there is to say of that, infra.http_limits says.
_QUIETER = ("uvicorn",)


def new_correlation_id() -> str:
    """Make a correlation id."""
    return secrets.token_hex(16)


def accept_correlation_id(candidate: str | None) -> str:
    """Return the client's correlation id if it is fit to store and send, else a new one."""
    if candidate is not None and CORRELATION_ID.fullmatch(candidate):
        return candidate
    return new_correlation_id()


@contextmanager
def traced(trace: Trace, **fields: object) -> Iterator[None]:
    """Put the ids of the trace, and whatever else names the unit of work, on every log line."""
    ids = {"correlation_id": trace.correlation_id}
    if trace.traceparent is not None and trace.traceparent.count("-") == _PARTS - 1:
        _, ids["trace_id"], ids["span_id"], _ = trace.traceparent.split("-")
    with structlog.contextvars.bound_contextvars(**ids, **fields):
        yield


def configure_logging(settings: Settings, *, process: str, worker: str) -> None:
    """Send all logs of the process, those of libraries included, to stderr in one format."""
    as_json = settings.log_format == "json" or (
        settings.log_format == "auto" and not sys.stderr.isatty()
    )
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _with_process(process, worker),
        structlog.processors.StackInfoRenderer(),
    ]
    render: list[Any] = (
        [_FRAMES_WITHOUT_LOCALS, render_json]
        if as_json
        # The traceback becomes text before the redaction, so that it is redacted too.
        else [
            structlog.processors.ExceptionRenderer(_plain_traceback),
            redact_event,
            _for_a_terminal,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            Sample(settings.log_success_sample),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    # Nobody reads who called, from which thread: to find out costs a good part of a line.
    logging._srcfile = None  # noqa: SLF001 - as its guide says
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.log_level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in _QUIETER:
        logging.getLogger(name).setLevel(logging.ERROR)


def _with_process(process: str, worker: str) -> Any:  # noqa: ANN401 - structlog's processor type
    def add(_logger: object, _name: str, event: MutableMapping[str, Any]) -> Any:  # noqa: ANN401
        event["process"] = process
        event["worker"] = worker
        return event

    return add


def _for_a_terminal(_logger: object, _name: str, event: MutableMapping[str, Any]) -> Any:  # noqa: ANN401
    """Leave out fields without a value, and what would steer the terminal or forge a line."""
    return {
        _printable(name): _FOR_A_TERMINAL.get(name, _field)(value)
        for name, value in event.items()
        if value is not None
    }


def _printable(text: object) -> str:
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _field(value: object) -> object:
    # What is no text is shown by its repr, which escapes.
    return _Shown(value) if isinstance(value, str) and not value.isprintable() else value


@dataclass(frozen=True, slots=True)
class _Shown:
    """A text that a renderer would write as it is."""

    text: str

    def __repr__(self) -> str:
        return repr(self.text)


def _indented(text: object) -> str:
    return "\n".join("    " + _printable(line) for line in str(text).split("\n"))


# The rest are fields of a name.
_FOR_A_TERMINAL: dict[str, Callable[[object], object]] = {
    "event": _printable,
    "exception": _indented,
    "stack": _indented,
}


# The locals of frames hold keys, passwords and whole inputs: they are never written.
_FRAMES_WITHOUT_LOCALS = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(
        show_locals=False, max_frames=_MOST_FRAMES, use_rich=False
    )
)


def _plain_traceback(exc_info: ExcInfo) -> str:
    text = "".join(traceback.format_exception(*exc_info, limit=-_MOST_FRAMES))
    lines = [redact(line[:TEXT_LIMIT]) for line in text[: 64 * TEXT_LIMIT].splitlines()]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES // 2 : -_MOST_LINES // 2] = [CUT]
    return "\n".join(lines)
