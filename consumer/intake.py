"""How much a consumer takes in: what its slots can take, and what would start soon after."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from collections.abc import Set as AbstractSet

_WEIGHT_OF_NEWEST = 0.2


class Room(NamedTuple):
    """Room that is kept for a claim under way: entries that may be asked for, and their inputs."""

    entries: int
    inputs: float


NO_ROOM = Room(0, 0.0)


class _Share(NamedTuple):
    """What a kind with fewer slots than there are may have in hand."""

    slots: int
    target: int


class Intake:
    """The number of inputs in hand, and whether another claim fits.

    A free slot is reason enough to claim. What may wait beyond the slots is what would start
    within ``prefetch_seconds``, and is filled up when half of it is used: a claim costs nearly as
    much for one entry as for many. Without a slot there is no room at all.

    A kind that may not use every slot must not keep the others' slots empty: what waits of it does
    not count as if it took one, and when it has enough in hand it is ``full``.
    """

    def __init__(
        self,
        *,
        slots: int,
        prefetch_inputs: int,
        prefetch_seconds: float = math.inf,
        kinds: Collection[str] = (),
    ) -> None:
        self._slots = slots
        self._limit = max(slots, prefetch_inputs)
        self._prefetch_seconds = prefetch_seconds
        self._kinds = frozenset(kinds)
        self._full: set[str] = set()
        self._shares: dict[str, _Share] = {}
        self._in_hand = 0
        self._of_kinds: dict[str, int] = dict.fromkeys(kinds, 0)
        self._input_seconds = 0.0
        self._expected = 0.0
        self._inputs_per_entry: float | None = None
        self.target = self._limit
        self._enough = self._limit // 2
        self._room = asyncio.Event()
        self._room.set()

    async def room(self, most: int) -> Room:
        """Wait until another claim fits, and keep room for it: ``most`` entries if they fit.

        ``took`` must follow.
        """
        while not self._room.is_set():  # another receiver may have come first
            await self._room.wait()
        left = self.target - self._judge()
        if self._inputs_per_entry is None:
            room = Room(1, 1.0)  # that one alone may fill every slot
        else:
            entries = min(most, max(1, math.floor(left / self._inputs_per_entry)))
            room = Room(entries, entries * self._inputs_per_entry)
        self._expected += room.inputs
        self._update()
        return room

    def took(self, room: Room, claims: Sequence[tuple[str, int]]) -> None:
        """Note what came into the room that was kept: the kind and the inputs of each claim."""
        self._expected -= room.inputs
        for kind, size in claims:
            self._in_hand += size
            self._of_kinds[kind] = self._of_kinds.get(kind, 0) + size
            newest = float(max(1, size))
            usual = newest if self._inputs_per_entry is None else self._inputs_per_entry
            self._inputs_per_entry = usual + _WEIGHT_OF_NEWEST * (newest - usual)
        self._update()

    @property
    def in_hand(self) -> int:
        """Give the number of inputs that were claimed and have not ended."""
        return self._in_hand

    @property
    def full(self) -> AbstractSet[str]:
        """Give the kinds of which no more is wanted; what is given changes with them."""
        return self._full

    def forgo(self, kind: str, *, inputs: int) -> None:
        """Note inputs that are no longer in hand: they ended, or will not run here."""
        self._in_hand -= inputs
        self._of_kinds[kind] -= inputs
        self._update()

    def resize(self, slots: int) -> None:
        """Note how many slots may be used from now on."""
        self._slots = slots
        self.target = self._target(slots, self._input_seconds)
        self._enough = self.target // 2 if slots else -1
        self._update()

    def adapt(
        self, slots: int, limits: Mapping[str, int], input_seconds: Callable[[str], float]
    ) -> None:
        """Follow the slots that may be used, those of each kind, and how long its inputs take."""
        if self._in_hand:
            work = sum(
                input_seconds(kind) * inputs for kind, inputs in self._of_kinds.items() if inputs
            )
            self._input_seconds = work / self._in_hand
        self._shares = {
            kind: _Share(limit, self._target(limit, input_seconds(kind)))
            for kind, limit in limits.items()
            if limit < slots
        }
        self._full.clear()
        self.resize(slots)

    def _target(self, slots: int, input_seconds: float) -> int:
        """Say how many inputs are worth having in hand: those that start soon, within bounds."""
        if not input_seconds:
            return self._limit  # the first ones do the measuring
        soon = min(self._limit, slots * self._prefetch_seconds / input_seconds)
        return max(slots, int(soon))

    def _update(self) -> None:
        # Once for every input: where every kind may use every slot, this is all there is to do.
        used = self._judge() if self._shares else self._in_hand + self._expected
        if used < self._slots or used <= self._enough:
            self._room.set()
        else:
            self._room.clear()

    def _judge(self) -> float:
        """See which kinds are full; give what counts as in hand."""
        used = self._in_hand + self._expected
        for kind, share in self._shares.items():
            held = self._of_kinds.get(kind, 0)
            used -= max(0, held - share.slots)
            if held < share.slots or held <= share.target // 2:
                self._full.discard(kind)
            else:
                self._full.add(kind)
        is_any_wanted = not self._kinds or len(self._full) < len(self._kinds)
        return used if is_any_wanted else math.inf
