"""Logs: one wide, structured event per unit of work, JSON in containers, readable on a terminal.

The correlation id and the job travel in context variables, so that every line written while a
unit of work runs carries them, whoever writes it.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import structlog
import structlog.tracebacks

from infra.sampling import Sample

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

    from structlog.typing import ExcInfo

    from infra.settings import Settings
    from schema.message import Trace

CORRELATION_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
# Every repetition is bounded: a text of any shape costs time in proportion to its length.
_URL_SECRET = re.compile(
    r"\b([A-Za-z][A-Za-z0-9+.-]{1,20}://)"
    r"(?:[^\s/]{0,256}@|[^\s/@:]{0,128}:[^\s@]{0,256}@|[^\s/@:]{0,128}:[^\s/@]{0,256}\Z)"
)
_BEARER = re.compile(r"(?i)\b(bearer\s{1,8})\S+")
_NAMED_SECRET = re.compile(r"(?i)(password=|x-amz-(?:signature|security-token)=)[^\s&'\"]+")
_API_KEY = re.compile(r"hlg_[A-Za-z0-9_-]+")
_SECRET_NAME = re.compile(r"(?i)passw(or)?d|secret|authorization|api_?key|(^|_)token$")
_HIDDEN = "***"
# What is longer is cut, with a mark, before anything else is done with it.
TEXT_LIMIT = 8 * 1024
_CUT = "… (cut)"
# What all fields of a line may take together, besides those that every line has.
_LINE_LIMIT = 24 * 1024
_NESTED_LIMIT = 1024
_DEEPEST = 12
_MOST_FRAMES = 20
_MOST_LINES = 120
_EVERY_LINE = frozenset({
    "event", "level", "timestamp", "process", "worker", "correlation_id", "job", "entry",
})  # fmt: skip
# Libraries that log every call at INFO or below; their warnings still pass.
_QUIET = ("aiobotocore", "aioboto3", "botocore", "asyncio", "uvicorn.access", "alembic")


def new_correlation_id() -> str:
    """Make a correlation id."""
    return uuid4().hex


def accept_correlation_id(candidate: str | None) -> str:
    """Return the client's correlation id if it is fit to store and send, else a new one."""
    if candidate is not None and CORRELATION_ID.fullmatch(candidate):
        return candidate
    return new_correlation_id()


@contextmanager
def traced(trace: Trace, **fields: object) -> Iterator[None]:
    """Put the correlation id, and whatever else names the unit of work, on every log line."""
    with structlog.contextvars.bound_contextvars(correlation_id=trace.correlation_id, **fields):
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
        [_FRAMES_WITHOUT_LOCALS, _redact, structlog.processors.JSONRenderer()]
        if as_json
        # The traceback becomes text before the redaction, so that it is redacted too.
        else [
            structlog.processors.ExceptionRenderer(_plain_traceback),
            _redact,
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
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.log_level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _with_process(process: str, worker: str) -> Any:  # noqa: ANN401 - structlog's processor type
    def add(_logger: object, _name: str, event: MutableMapping[str, Any]) -> Any:  # noqa: ANN401
        # uvicorn's own colours, said a second time.
        event.pop("color_message", None)
        event["process"] = process
        event["worker"] = worker
        return event

    return add


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
        lines[_MOST_LINES // 2 : -_MOST_LINES // 2] = [_CUT]
    return "\n".join(lines)


def _redact(_logger: object, _name: str, event: MutableMapping[str, Any]) -> Any:  # noqa: ANN401
    # What every line has is never what has to go when others are too long.
    line = _Line(_LINE_LIMIT)
    for name in event:
        if name in _EVERY_LINE:
            event[name] = _Line(TEXT_LIMIT).value(event[name])
    return {
        _text(name): value if name in _EVERY_LINE else line.field(name, value)
        for name, value in event.items()
    }


class _Line:
    """Takes the secrets out of the values of one line, and cuts them to what is left of it."""

    def __init__(self, left: int) -> None:
        self._left = left

    def field(self, name: object, value: object, depth: int = 0) -> object:
        """Give what may be written of a field."""
        if isinstance(name, str) and value and _SECRET_NAME.search(name[:TEXT_LIMIT]):
            return _HIDDEN
        return self.value(value, depth)

    def value(self, value: object, depth: int = 0) -> object:
        """Give what may be written of a value: plain JSON, without secrets."""
        if value is None or isinstance(value, bool | float):
            return value
        if isinstance(value, int):
            return value if value.bit_length() <= 64 else _CUT  # noqa: PLR2004 - a machine's word
        if isinstance(value, Mapping):
            return self._mapping(value, depth + 1)
        if isinstance(value, list | tuple | set | frozenset):
            return self._list(value, depth + 1)
        # Whatever the renderer would show by its repr is a text as well.
        text = redact(value if isinstance(value, str) else _shown(value))
        # Deep inside, as in exceptions of exceptions, none may take the place of all others.
        if depth and len(text) > _NESTED_LIMIT:
            text = text[:_NESTED_LIMIT] + _CUT
        return self._fitted(text)

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, object]:
        kept: dict[str, object] = {}
        for name, member in value.items():
            if self._left <= 0 or depth > _DEEPEST:
                kept[_CUT] = len(value) - len(kept)
                break
            text = self._fitted(_text(name))
            kept[text] = self.field(name, member, depth)
        return kept

    def _list(self, value: Iterable[object], depth: int) -> list[object]:
        kept: list[object] = []
        for member in value:
            if self._left <= 0 or depth > _DEEPEST:
                kept.append(_CUT)
                break
            self._left -= 4
            kept.append(self.value(member, depth))
        return kept

    def _fitted(self, text: str) -> str:
        wide = 1 if text.isascii() else 6  # as JSON escapes it
        room = max(self._left // wide, 0)
        self._left -= len(text) * wide + 4
        return text if len(text) <= room else text[:room] + _CUT


def _text(name: object) -> str:
    return redact(name if isinstance(name, str) else _shown(name))


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - a line is written whatever a field's repr does
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


def redact(text: str) -> str:
    """Take credentials out of a text, and cut it to ``TEXT_LIMIT``.

    Credentials are those inside URLs, bearer tokens, passwords of connection strings, API keys.
    """
    cut = len(text) > TEXT_LIMIT
    text = text[:TEXT_LIMIT]
    if "://" in text:
        text = _URL_SECRET.sub(_without_userinfo, text)
    text = _BEARER.sub(r"\1***", text)
    text = _NAMED_SECRET.sub(r"\1***", text)
    text = _API_KEY.sub("hlg_***", text)
    return text + _CUT if cut else text


def _without_userinfo(found: re.Match[str]) -> str:
    if found[0].endswith("@"):
        return f"{found[1]}{_HIDDEN}@"
    # The end of the text: a host with its port, or a password whose URL was cut off.
    return found[0] if len(found.string) < TEXT_LIMIT else f"{found[1]}{_HIDDEN}"
