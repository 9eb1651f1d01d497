"""The pace of each kind, measured here and shared through the database: chunks follow it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from schema.errors import Unavailable
from schema.statements.paces import blend_paces

if TYPE_CHECKING:
    from infra.database import Database

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_WEIGHT_OF_NEWEST = 0.05
# Half of the way: a kind that changed is known after a few writes, one odd consumer is outvoted.
_WEIGHT_OF_A_WRITE = 0.5
_INTERVAL_SECONDS = 10.0


class Paces:
    """How long an input of each kind takes in this process, as a moving average."""

    def __init__(self, database: Database, *, interval_seconds: float = _INTERVAL_SECONDS) -> None:
        self._database = database
        self._interval_seconds = interval_seconds
        self._average_ms: dict[str, float] = {}
        self._unwritten: set[str] = set()
        self._measured = asyncio.Event()

    def note(self, kind: str, *, elapsed_ms: float, inputs: int) -> None:
        """Note that so many inputs of a kind ended after ``elapsed_ms`` in all; never waits."""
        input_ms = elapsed_ms / inputs
        before = self._average_ms.setdefault(kind, input_ms)
        weight = 1 - (1 - _WEIGHT_OF_NEWEST) ** inputs
        self._average_ms[kind] = before + weight * (input_ms - before)
        self._unwritten.add(kind)
        self._measured.set()

    def input_seconds(self, kind: str) -> float:
        """Give how long an input of the kind takes here; 0 while that is not known."""
        return self._average_ms.get(kind, 0.0) / 1000

    async def run(self) -> None:
        """Write what was measured, once per interval at most, until cancelled."""
        while True:
            await self._measured.wait()
            await asyncio.sleep(self._interval_seconds)
            await self.write_once()

    async def write_once(self) -> None:
        """Write the kinds measured since the last time; a write that fails is left out."""
        self._measured.clear()
        kinds, self._unwritten = self._unwritten, set()
        if not kinds:
            return
        measured = {kind: self._average_ms[kind] for kind in kinds}
        try:
            await self._database.fetch(blend_paces(measured, weight=_WEIGHT_OF_A_WRITE))
        except Unavailable as error:
            log.debug("pace.not_written", kinds=sorted(kinds), error=str(error))
        except Exception:  # a courtesy to later submissions never ends the process
            log.exception("pace.not_written", kinds=sorted(kinds))
