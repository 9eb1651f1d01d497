"""Fits what runs at once, and what waits in hand, to how it goes: once per window, and purely.

- A kind of which many inputs fail in a way that may pass has fewer slots: its neighbour has enough.
- All kinds together have fewer slots while connections of the pool are waited for.
- What waits in hand is what would start soon; what would not for long is given back to others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from consumer.concurrency import Limit
from schema.outcome import Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from consumer.executor import Executor
    from consumer.intake import Intake
    from consumer.pace import Paces
    from schema.kinds import ConcurrencyBounds
    from schema.outcome import Outcome

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# The platform's own statements take less.
_LONG_WAIT_SECONDS = 0.25
# Far from what is taken in, lest it goes to and fro.
_SLICES_TO_GIVE_BACK = 4


class Regulator:
    """The limits of a consumer, for each of its kinds and for all together."""

    def __init__(
        self,
        intake: Intake,
        executor: Executor,
        paces: Paces,
        *,
        bounds: Mapping[str, ConcurrencyBounds],
        slots: int,
        minimum: int,
        window_seconds: float,
        prefetch_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._intake = intake
        self._executor = executor
        self._paces = paces
        self._window_seconds = window_seconds
        self._prefetch_seconds = prefetch_seconds
        self._clock = clock
        self._all = Limit(floor=minimum, ceiling=slots)
        self._kinds = {
            kind: Limit(
                floor=max(minimum, given.minimum),
                ceiling=slots if given.maximum is None else min(slots, given.maximum),
            )
            for kind, given in bounds.items()
        }
        # What was told to be cut, and is not back yet; None stands for all kinds.
        self._cut: set[str | None] = set()
        self._apply()

    @property
    def limits(self) -> dict[str, int]:
        """Give how many slots each kind may use."""
        return {kind: min(limit.value, self._all.value) for kind, limit in self._kinds.items()}

    def note(self, kind: str, outcomes: Sequence[Outcome], elapsed_seconds: float) -> None:
        """Note what came of inputs that ran together, in the time until now."""
        # Only this fails for a reason that fewer at once may mend: what is refused, or not there,
        # would be so again.
        bad = 0
        for outcome in outcomes:
            if type(outcome) is Failed:
                bad += 1
        self._kinds[kind].note(self._clock() - elapsed_seconds, len(outcomes), bad)

    def note_wait(self, seconds: float) -> None:
        """Note how long somebody waited until another was done with a connection of the pool."""
        began = self._clock() - seconds
        self._all.note(began, 1, int(seconds > _LONG_WAIT_SECONDS))

    async def run(self) -> None:
        """Close one window after the other until cancelled."""
        while True:
            await asyncio.sleep(self._window_seconds)
            self.once()

    def once(self) -> None:
        """Close a window: judge by what was noted in it, and let everything follow."""
        now = self._clock()
        if self._all.decide(now):
            self._tell(None, self._all)
        for kind, limit in self._kinds.items():
            if limit.decide(now):
                self._tell(kind, limit)
        self._apply()
        many = self._executor.give_back(
            self._prefetch_seconds * _SLICES_TO_GIVE_BACK, self._input_seconds
        )
        if many:
            log.info("entries.given_back", entries=many, in_hand=self._intake.in_hand)

    def _apply(self) -> None:
        self._executor.limit(self._all.value, {k: limit.value for k, limit in self._kinds.items()})
        self._intake.adapt(self._executor.capacity, self.limits, self._input_seconds)

    def _input_seconds(self, kind: str) -> float:
        """Say how long an input takes: as long as they took, or as those that run already have."""
        return max(self._paces.input_seconds(kind), self._executor.least_seconds(kind))

    def _tell(self, kind: str | None, limit: Limit) -> None:
        """Tell that half of the slots are gone, and that all are back; not each step in between."""
        about = {"kind": kind, "slots": limit.value, "of": limit.ceiling}
        if kind not in self._cut and limit.value <= limit.ceiling // 2:
            self._cut.add(kind)
            because = "inputs fail" if kind else "connections of the pool are waited for"
            log.warning("concurrency.cut", because=because, **about)
        elif kind in self._cut and limit.value == limit.ceiling:
            self._cut.discard(kind)
            log.info("concurrency.restored", **about)
