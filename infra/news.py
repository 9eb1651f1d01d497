"""What is to be told, and what was told before."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

_MOST_TOLD, _TOLD_APART = 10_000, 500


class News:
    """Knows of each that is in trouble what was told of it last."""

    def __init__(self) -> None:
        self._told: dict[Hashable, str] = {}

    def is_news(self, key: Hashable, error: Exception) -> bool:
        """Say whether this is to be told: once, although it comes again with every round."""
        # The lines after the first may name the row, in which each round puts another time.
        said = f"{type(error).__name__}: {error}".split("\n", 1)[0][:_TOLD_APART]
        is_news = self._told.pop(key, None) != said
        self._told[key] = said
        while len(self._told) > _MOST_TOLD:
            del self._told[next(iter(self._told))]
        return is_news

    def is_well(self, key: Hashable) -> None:
        """Forget the trouble of one for which it could be done: the next one is news."""
        self._told.pop(key, None)
