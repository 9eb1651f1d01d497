"""How much a consumer takes in: only what free slots can take, counted in inputs."""

from __future__ import annotations

import asyncio
import math
from typing import NamedTuple

_WEIGHT_OF_NEWEST = 0.2


class Room(NamedTuple):
    """Room that is kept for a claim under way: entries that may be asked for, and their inputs."""

    entries: int
    inputs: float


class Intake:
    """The number of inputs in hand, and whether another claim fits.

    A free slot is reason enough to claim. What may wait beyond the slots is filled up when half of
    it is used: a claim costs nearly as much for one entry as for many.
    """

    def __init__(self, *, slots: int, prefetch_inputs: int) -> None:
        self._slots = slots
        self._limit = max(slots, prefetch_inputs)
        self._in_hand = 0
        self._expected = 0.0
        self._inputs_per_entry: float | None = None
        self._room = asyncio.Event()
        self._room.set()

    async def room(self, most: int) -> Room:
        """Wait until another claim fits, and keep room for it: ``most`` entries if they fit.

        ``took`` must follow.
        """
        while not self._room.is_set():  # another receiver may have come first
            await self._room.wait()
        left = self._limit - self._in_hand - self._expected
        if self._inputs_per_entry is None:
            room = Room(1, 1.0)  # that one alone may fill every slot
        else:
            entries = min(most, max(1, math.floor(left / self._inputs_per_entry)))
            room = Room(entries, entries * self._inputs_per_entry)
        self._expected += room.inputs
        self._update()
        return room

    def took(self, room: Room, entry_sizes: list[int]) -> None:
        """Note what came into the room that was kept, by the numbers of inputs of the claims."""
        self._expected -= room.inputs
        for size in entry_sizes:
            self._in_hand += size
            newest = float(max(1, size))
            usual = newest if self._inputs_per_entry is None else self._inputs_per_entry
            self._inputs_per_entry = usual + _WEIGHT_OF_NEWEST * (newest - usual)
        self._update()

    @property
    def in_hand(self) -> int:
        """Give the number of inputs that were claimed and have not ended."""
        return self._in_hand

    def forgo(self, *, inputs: int) -> None:
        """Note inputs that are no longer in hand: they ended, or will not run here."""
        self._in_hand -= inputs
        self._update()

    def _update(self) -> None:
        used = self._in_hand + self._expected
        if used < self._slots or used <= self._limit // 2:
            self._room.set()
        else:
            self._room.clear()
