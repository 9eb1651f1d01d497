"""How much a consumer takes in: only what free slots can take, counted in inputs."""

from __future__ import annotations

import asyncio
import math

_WEIGHT_OF_NEWEST = 0.2


class Intake:
    """Slots for running inputs, and the number of inputs in hand that have not run yet."""

    def __init__(self, *, slots: int, prefetch_inputs: int) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._limit = max(slots, prefetch_inputs)
        self._in_hand = 0
        self._inputs_per_entry = 1.0
        self._room = asyncio.Event()
        self._room.set()

    @property
    def in_hand(self) -> int:
        """Give the number of inputs that were claimed and have not ended."""
        return self._in_hand

    async def room(self) -> int:
        """Wait until another claim fits; give how many entries of the usual size would."""
        await self._room.wait()
        return max(1, math.floor((self._limit - self._in_hand) / self._inputs_per_entry))

    def took(self, entry_sizes: list[int]) -> None:
        """Note claims that came in, by their numbers of inputs."""
        for size in entry_sizes:
            self._in_hand += size
            self._inputs_per_entry += _WEIGHT_OF_NEWEST * (max(1, size) - self._inputs_per_entry)
        self._update()

    async def take_slot(self) -> None:
        """Wait for a free slot and take it."""
        await self._slots.acquire()

    def free_slot(self, *, inputs: int) -> None:
        """Give a slot back, whose inputs have ended."""
        self._slots.release()
        self.forgo(inputs=inputs)

    def forgo(self, *, inputs: int) -> None:
        """Note inputs in hand that will not run here."""
        self._in_hand -= inputs
        self._update()

    def _update(self) -> None:
        if self._in_hand < self._limit:
            self._room.set()
        else:
            self._room.clear()
