"""The pace of each kind, measured here and shared through the database: chunks follow it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from schema.errors import Unavailable
from schema.statements.paces import LEAST_MS, blend_paces

if TYPE_CHECKING:
    from infra.database import Database

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_WEIGHT_OF_NEWEST = 0.05
# Half of the way: a kind that changed is known after a few writes, one odd consumer is outvoted.
_WEIGHT_OF_A_WRITE = 0.5
# A write follows after so many looks, or after one that finds a pace far off: a new one, or one
# more than so many times what is measured, or less than that part of it.
_LOOKS = 10
_LOOK_SECONDS = 1.0
_FAR_OFF = 2.0


class Paces:
    """How long an input of each kind takes in this process, as a moving average."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._average_ms: dict[str, float] = {}
        # What stood in the database after the last write.
        self._shared_ms: dict[str, float] = {}
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
        """Write what was measured, soon where what is shared is far off, until cancelled."""
        while True:
            await self._measured.wait()
            for _ in range(_LOOKS):
                await asyncio.sleep(_LOOK_SECONDS)
                if self.is_far_off():
                    break
            await self.write_once()

    def is_far_off(self) -> bool:
        """Say whether something measured since the last write is new, or far from what is shared.

        That is halved with each write, and written soon until it is not.
        """
        return any(self._is_kind_far_off(kind) for kind in self._unwritten)

    def _is_kind_far_off(self, kind: str) -> bool:
        shared_ms = self._shared_ms.get(kind)
        measured_ms = max(self._average_ms[kind], LEAST_MS)
        return shared_ms is None or not 1 / _FAR_OFF <= measured_ms / shared_ms <= _FAR_OFF

    async def write_once(self) -> None:
        """Write the kinds measured since the last time; a write that fails is left out."""
        self._measured.clear()
        kinds, self._unwritten = self._unwritten, set()
        if not kinds:
            return
        measured = {kind: self._average_ms[kind] for kind in kinds}
        try:
            rows = await self._database.fetch(blend_paces(measured, weight=_WEIGHT_OF_A_WRITE))
            self._shared_ms |= {row.kind: row.input_ms for row in rows}
        except Unavailable as error:
            log.debug("pace.not_written", kinds=sorted(kinds), error=str(error))
        except Exception:  # a courtesy to later submissions never ends the process
            log.exception("pace.not_written", kinds=sorted(kinds))
