"""What is never written: credentials are taken out of log events, and these are cut.

Whatever a field of a log event holds, the line that comes of it is plain JSON of bounded size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from schema.redaction import CUT, HIDDEN, SIGNS, TEXT_LIMIT, is_secret, redact

if TYPE_CHECKING:
    from collections.abc import MutableMapping

# What all fields of a line may take together, besides those that every line has.
_LINE_LIMIT = 24 * 1024
_NESTED_LIMIT = 1024
_DEEPEST = 40
_EVERY_LINE = frozenset({
    "event", "level", "timestamp", "process", "worker", "correlation_id", "trace_id", "span_id",
    "job", "entry",
})  # fmt: skip


_encoded = json.JSONEncoder(allow_nan=False).encode


def render_json(logger: object, name: str, event: MutableMapping[str, Any]) -> str:
    """Give the line of an event, as ``redact_event`` lets it be written: the renderer of structlog.

    Most events are short, of plain values, and show no sign of a secret: to see that in the
    finished line costs a fifth of what it costs to look at each field.
    """
    with suppress(TypeError, ValueError):
        line = _encoded(event)
        lowered = line.lower()
        if len(line) <= _NESTED_LIMIT and not any(sign in lowered for sign in SIGNS):
            return line
    return _encoded(redact_event(logger, name, event))


def redact_event(_logger: object, _name: str, event: MutableMapping[str, Any]) -> Any:  # noqa: ANN401
    """Give an event as it may be written, as plain JSON: a processor of structlog."""
    # What every line has is never what has to go when others are too long.
    line = _Line(_LINE_LIMIT)
    for name in event:
        if name in _EVERY_LINE:
            event[name] = _Line(TEXT_LIMIT).value(event[name])
    return {
        _named(name): value if name in _EVERY_LINE else line.field(name, value)
        for name, value in event.items()
    }


class _Line:
    """Takes the secrets out of the values of one line, and cuts them to what is left of it."""

    def __init__(self, left: int) -> None:
        self._left = left

    def field(self, name: object, value: object, depth: int = 0) -> object:
        """Give what may be written of a field."""
        if isinstance(name, bytes):
            name = name.decode("latin-1")
        if value and isinstance(name, str) and is_secret(name):
            return HIDDEN
        return self.value(value, depth)

    def value(self, value: object, depth: int = 0) -> object:
        """Give what may be written of a value: plain JSON, without secrets."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, float):
            # JSON has no others.
            return value if math.isfinite(value) else str(value)
        if isinstance(value, int):
            # A member of an enumeration becomes its number.
            return int(value) if value.bit_length() <= 64 else CUT  # noqa: PLR2004 - a machine's word
        if not isinstance(value, str):
            if isinstance(value, Mapping):
                return self._mapping(value, depth + 1)
            if isinstance(value, list | tuple | set | frozenset):
                return self._list(value, depth + 1)
            # Whatever the renderer would show by its repr is a text as well.
            value = _shown(value)
        text = redact(value)
        # Deep inside, as in exceptions of exceptions, none may take the place of all others.
        if depth and len(text) > _NESTED_LIMIT:
            text = text[:_NESTED_LIMIT] + CUT
        return self._fitted(text)

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, object]:
        kept: dict[str, object] = {}
        for name, member in value.items():
            if self._left <= 0 or depth > _DEEPEST:
                kept[CUT] = len(value) - len(kept)
                break
            text = self._fitted(_text(name))
            kept[text] = self.field(name, member, depth)
        return kept

    def _list(self, value: Iterable[object], depth: int) -> list[object]:
        kept: list[object] = []
        for member in value:
            if self._left <= 0 or depth > _DEEPEST:
                kept.append(CUT)
                break
            self._left -= 4
            kept.append(self.value(member, depth))
        return kept

    def _fitted(self, text: str) -> str:
        wide = 1 if text.isascii() else 6  # as JSON escapes it
        room = max(self._left // wide, 0)
        self._left -= len(text) * wide + 4
        return text if len(text) <= room else text[:room] + CUT


@lru_cache(maxsize=512)
def _named(name: str) -> str:
    return _text(name)


def _text(name: object) -> str:
    return redact(name if isinstance(name, str) else _shown(name))


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - a line is written whatever a field's repr does
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
