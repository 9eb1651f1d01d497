"""How long a loop that takes what is due rests after it found nothing to take."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_LEAST_SECONDS = 0.01


class Pauses:
    """Rests until something is due, and never longer than ``most_seconds``.

    What is due and could not be taken became so this very moment, or is in other hands for as long
    as they like: each rest for its sake is twice the one before, until something is taken.
    """

    def __init__(self, *, most_seconds: float) -> None:
        self._most_seconds = most_seconds
        self._in_vain_seconds = _LEAST_SECONDS

    def took(self) -> None:
        """Say that something was taken: the next rest for what is due is short again."""
        self._in_vain_seconds = _LEAST_SECONDS

    def seconds(self, dues: Iterable[float]) -> float:
        """Give the length of a rest, by the seconds until this and that is due (0 or less: it is).

        What is due and cannot be taken does not hide what will be due soon.
        """
        ahead = self._most_seconds
        is_due = False
        for due_seconds in dues:
            if due_seconds <= 0:
                is_due = True
            else:
                ahead = min(ahead, max(due_seconds, _LEAST_SECONDS))
        if not is_due:
            self.took()
            return ahead
        rest = min(ahead, self._in_vain_seconds)
        self._in_vain_seconds = min(2 * self._in_vain_seconds, self._most_seconds)
        return rest
