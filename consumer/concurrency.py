"""How many slots a kind may use: more while it goes well, half as many when too much fails.

Additive increase, multiplicative decrease, as TCP has it: whoever shares a neighbour with others
finds the share that the neighbour can bear, without knowing of them.
"""

from __future__ import annotations

import math

# Fewer outcomes say nothing: a kind of which a twentieth fails anyway is cut by chance three times
# in ten thousand windows. Of few slots some rounds are enough, lest a judgement takes long.
_LEAST_ENDED = 20
_LEAST_ROUNDS = 4
_BAD_SHARE = 0.25
# From one slot to all of them in so many windows.
_STEPS = 16
# What failed at a number of slots is likely to fail there again: it is tried more rarely.
_PATIENCE = 10


class Limit:
    """A number between ``floor`` and ``ceiling`` that follows what came of the work under it.

    Who has the clock closes a window by ``decide``. Work that began before the number changed last
    says nothing of what it is now, and does not count.
    """

    def __init__(self, *, floor: int, ceiling: int) -> None:
        self.floor = min(floor, ceiling)
        self.ceiling = ceiling
        self.value = ceiling
        self._step = math.ceil(ceiling / _STEPS)
        self._changed_at = -math.inf
        self._ended = 0
        self._bad = 0
        self._is_falling = False
        # The number at which too much failed, and the good windows just below it.
        self._failed_at: int | None = None
        self._good_windows = 0

    def note(self, began: float, ended: int, bad: int) -> None:
        """Note what ended, when it began, and how much of it says that it was too much at once."""
        if began >= self._changed_at:
            self._ended += ended
            self._bad += bad

    def decide(self, now: float) -> bool:
        """Close a window; say whether the number has changed. Too little to judge by is kept."""
        is_bad = self._bad > self._ended * _BAD_SHARE
        if is_bad and self._ended >= min(_LEAST_ENDED, _LEAST_ROUNDS * self.value):
            return self._cut(now)
        if not is_bad and self._ended >= min(self.value, _LEAST_ENDED):
            return self._grow(now)
        return False

    def _cut(self, now: float) -> bool:
        # Cuts that follow each other are one fall: it began where too much failed first.
        if not self._is_falling:
            self._failed_at = self.value
        self._is_falling = True
        self._good_windows = 0
        return self._move(max(self.floor, self.value // 2), now)

    def _grow(self, now: float) -> bool:
        self._is_falling = False
        following = min(self.ceiling, self.value + self._step)
        if self._failed_at is not None and following >= self._failed_at:
            self._good_windows += 1
            if self._good_windows < _PATIENCE:
                return self._move(self.value, now)
            self._failed_at = None
        self._good_windows = 0
        return self._move(following, now)

    def _move(self, value: int, now: float) -> bool:
        has_changed = value != self.value
        if has_changed:
            self._changed_at = now
        self.value = value
        self._ended = self._bad = 0
        return has_changed
