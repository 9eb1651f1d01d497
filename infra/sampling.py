"""Which log lines of what went well are written: those of whole jobs, or none of them.

Who controlled or redrove a job is always written: such a request has a correlation id of its own.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from structlog import DropEvent

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    Event = MutableMapping[str, Any]

_QUIET_LEVELS = frozenset({"debug", "info"})
_FIRST_REFUSAL = 400
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_SUBMISSIONS = "/jobs"


def _is_telling(event: Event) -> bool:
    """Say whether a request was refused, or changed what an earlier one began."""
    refused = (event.get("status") or _FIRST_REFUSAL) >= _FIRST_REFUSAL
    return refused or (event["method"] not in _READING and event["route"] != _SUBMISSIONS)


# The wide events are written whatever came of the unit of work; their fields say what did.
_ALWAYS: dict[str, Callable[[Event], bool]] = {
    "http.request": _is_telling,
    "entry.done": lambda event: event.get("ended") not in {"settled", "released"},
    # Nobody knows yet whether its process will die of it.
    "processor.output": lambda _event: True,
}


class Sample:
    """A processor of structlog that drops lines of success outside the sample.

    The correlation id decides, by a hash that every process computes alike: of a job either all
    lines are written, or only those of what failed and of requests that changed it later. Lines
    without one are about the process itself.
    """

    def __init__(self, share: float) -> None:
        self._share = share

    def __call__(self, _logger: object, _name: str, event: Event) -> Event:
        """Give the event on, or drop it."""
        correlation_id = event.get("correlation_id")
        if not isinstance(correlation_id, str) or self.takes(correlation_id):
            return event
        always = _ALWAYS.get(event["event"])
        if event["level"] not in _QUIET_LEVELS or (always is not None and always(event)):
            return event
        raise DropEvent

    def takes(self, correlation_id: str) -> bool:
        """Say whether a correlation id is in the sample; in a larger sample it is as well."""
        return zlib.crc32(correlation_id.encode()) < self._share * 2**32
