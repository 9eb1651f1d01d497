"""Places that requests take while they do what costs: few, and nobody waits for one for ever."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from api.problems import unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

_RETRY_AFTER_SECONDS = 5


class Places:
    """So many at once; who waits longer than ``wait_seconds`` is refused with a 503."""

    def __init__(self, many: int, *, wait_seconds: float, refusal: str) -> None:
        self._free = asyncio.Semaphore(many)
        self._wait_seconds = wait_seconds
        self._refusal = refusal

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Hold a place until the exit; who came first gets it first."""
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._free.acquire()
        except TimeoutError:
            raise unavailable(self._refusal, retry_after_seconds=_RETRY_AFTER_SECONDS) from None
        try:
            yield
        finally:
            self._free.release()


@dataclass(slots=True)
class _Own:
    """The places of one owner, for as long as anyone uses them."""

    places: Places
    users: int = 0


class PlacesOfOwners:
    """So many at once for each owner, who waits for nobody but itself."""

    def __init__(self, many: int, *, wait_seconds: float, refusal: str) -> None:
        self._many = many
        self._wait_seconds = wait_seconds
        self._refusal = refusal
        self._of: dict[UUID | None, _Own] = {}

    @asynccontextmanager
    async def one(self, owner_id: UUID | None) -> AsyncIterator[None]:
        """Hold one of the owner's places until the exit."""
        own = self._of.get(owner_id)
        if own is None:
            own = _Own(Places(self._many, wait_seconds=self._wait_seconds, refusal=self._refusal))
            self._of[owner_id] = own
        own.users += 1
        try:
            async with own.places.one():
                yield
        finally:
            own.users -= 1
            if not own.users:
                del self._of[owner_id]
