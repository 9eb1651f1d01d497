"""How much a consumer takes in: only what free slots can take, counted in inputs."""

from __future__ import annotations

import asyncio
import math

_WEIGHT_OF_NEWEST = 0.2


class Intake:
    """Slots for running inputs, and the number of inputs in hand that have not run yet."""

    def __init__(self, *, slots: int, prefetch_inputs: int) -> None:
        self.slots = slots
        self._slots = asyncio.Semaphore(slots)
        self._waiting = 0
        self._withheld = 0
        self._to_keep = 0
        self._closed = False
        self._limit = max(slots, prefetch_inputs)
        self._in_hand = 0
        self._inputs_per_entry: float | None = None
        self._room = asyncio.Event()
        self._room.set()

    async def room(self) -> int:
        """Wait until another claim fits; give how many entries of the usual size would."""
        await self._room.wait()
        if self._inputs_per_entry is None:
            return 1  # that one alone may fill every slot
        return max(1, math.floor((self._limit - self._in_hand) / self._inputs_per_entry))

    def took(self, entry_sizes: list[int]) -> None:
        """Note claims that came in, by their numbers of inputs."""
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

    @property
    def capacity(self) -> int:
        """Give the number of inputs that may run at once."""
        return self.slots - self._withheld

    @property
    def withheld(self) -> int:
        """Give the number of slots held by processors that did not end when they were told to."""
        return self._withheld

    async def take_slot(self) -> None:
        """Wait for a free slot and take it; after ``close`` nobody waits, and nothing may start."""
        if self._closed:
            return
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1

    def free_slot(self, *, inputs: int) -> None:
        """Give a slot back, whose inputs have ended or are given up."""
        if self._to_keep:
            self._to_keep -= 1
        else:
            self._slots.release()
        self.forgo(inputs=inputs)

    def withhold_slot(self) -> None:
        """Keep the slot that is given back next: what ran in it still runs."""
        self._withheld += 1
        self._to_keep += 1

    def return_slot(self) -> None:
        """Give back a slot that was withheld."""
        self._withheld -= 1
        if self._to_keep:
            self._to_keep -= 1
        else:
            self._slots.release()

    def close(self) -> None:
        """Let everyone who waits for a slot go on, to find that nothing starts any more."""
        self._closed = True
        for _ in range(self._waiting):
            self._slots.release()

    def forgo(self, *, inputs: int) -> None:
        """Note inputs in hand that will not run here."""
        self._in_hand -= inputs
        self._update()

    def _update(self) -> None:
        if self._in_hand < self._limit:
            self._room.set()
        else:
            self._room.clear()
