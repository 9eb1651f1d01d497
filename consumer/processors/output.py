"""What a child process writes, line by line into our log, within bounds.

Its own log events become ours; anything else is a line of text. A child that writes without end
is read slowly, so that it is held up by its own writing, and mostly thrown away.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from schema.outcome import MESSAGE_LIMIT, clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LINES_PER_INPUT = 200
_EVENT_BYTES = 32 * 1024
_READ_BYTES = 64 * 1024
_FREE_BYTES = 1024 * 1024
_THROTTLE_SECONDS = 0.05
_LEVELS = {"debug", "info", "warning", "error", "critical"}
# What the log of this process says for itself, or would take for an instruction.
_NOT_HANDED_ON = {
    "event", "level", "timestamp", "process", "worker", "exc_info", "stack_info", "stacklevel",
    "extra", "positional_args", "self", "method_name", "_record", "_from_structlog",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """One line for our log."""

    level: int
    event: str
    fields: Mapping[str, Any]


def read_line(written: bytes) -> Line:
    """Read a line of a child: an event of its log, or text."""
    said: dict[str, Any] = {}
    try:
        said = json.loads(written)
        level, event = said.pop("level"), said.pop("event")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        level = event = None
    if not isinstance(event, str) or level not in _LEVELS:
        text = clean(written[: 4 * MESSAGE_LIMIT].decode(errors="replace"))
        return Line(logging.INFO, "processor.output", {"line": text})
    fields = {name: value for name, value in said.items() if name not in _NOT_HANDED_ON}
    return Line(logging.getLevelNamesMapping()[level.upper()], event, fields)


class Output:
    """Reads what one child writes."""

    def __init__(self, about: Callable[[], Mapping[str, object]]) -> None:
        self._about = about
        self._told = 0
        self._dropped = 0
        self._free = _FREE_BYTES

    def begin(self) -> None:
        """Start to count anew: another input."""
        self._tell_dropped()
        self._told, self._free = 0, _FREE_BYTES

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Read until the end, or until cancelled."""
        line = bytearray()
        while part := await reader.read(_READ_BYTES):
            *whole, rest = part.split(b"\n")
            for piece in whole:
                line += piece
                self._tell(bytes(line[:_EVENT_BYTES]))
                line.clear()
            # The rest of a line that is too long is nobody's memory.
            line += rest[: max(0, _EVENT_BYTES - len(line))]
            self._free -= len(part)
            if self._free < 0:
                await asyncio.sleep(_THROTTLE_SECONDS)
        if line:
            self._tell(bytes(line))
        self._tell_dropped()

    def _tell(self, written: bytes) -> None:
        if self._told >= LINES_PER_INPUT:
            self._dropped += 1
        elif written.strip():
            self._told += 1
            line = read_line(written)
            log.log(line.level, line.event, **{**line.fields, **self._about()})

    def _tell_dropped(self) -> None:
        if self._dropped:
            log.warning("processor.output_dropped", lines=self._dropped, **self._about())
            self._dropped = 0
