"""How much work there is, waits and runs, over the whole platform; measured, never guessed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from starlette.responses import JSONResponse

from schema.errors import Unavailable
from schema.statements.gauges import measure_backlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Row
    from starlette.requests import Request

    from infra.database import Database

# Entries that are counted at most; more are as good as this many to whoever scales by it.
MOST_ENTRIES = 100_000
_FRESH_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Work:
    """What is ready and what runs, of one kind or of all; seconds are known once kinds ran."""

    ready_entries: int = 0
    ready_inputs: int = 0
    running_inputs: int = 0
    busy_consumers: int = 0
    # None: something is ready, and the pace of none of it is known.
    work_seconds: float | None = 0.0

    @classmethod
    def from_row(cls, row: Row[Any]) -> Self:
        """Read a row of ``measure_backlog``."""
        return cls(
            row.ready_entries,
            row.ready_inputs,
            row.running_inputs,
            row.busy_consumers,
            row.work_seconds if row.ready_inputs else 0.0,
        )

    def seconds_per_consumer(self, concurrency: int) -> float | None:
        """Say how long the consumers that are busy now would take; none busy counts as one."""
        if self.work_seconds is None:
            return None
        return self.work_seconds / (max(self.busy_consumers, 1) * concurrency)


@dataclass(frozen=True, slots=True)
class Backlog:
    """One measurement. ``is_capped``: there was more than was counted."""

    total: Work
    kinds: dict[str, Work]
    is_capped: bool
    runnable_seconds: float
    unsent_seconds: float


async def measure(database: Database, *, most: int = MOST_ENTRIES) -> Backlog:
    """Measure; raises ``Unavailable``."""
    rows = {row.kind: row for row in await database.fetch(measure_backlog(most=most))}
    total = rows.pop(None)
    return Backlog(
        Work.from_row(total),
        {kind: Work.from_row(row) for kind, row in rows.items()},
        total.looked_at >= most,
        total.runnable_seconds,
        total.unsent_seconds,
    )


class Scaling:
    """Answers ``/scaling``: the numbers by which the number of consumers is chosen.

    ``mine`` gives this process's running inputs and slots, where it is a consumer. The platform is
    measured every five seconds at most, however often and by whomever it is asked for.
    """

    def __init__(
        self,
        database: Database,
        *,
        concurrency: int,
        mine: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self._database = database
        self._concurrency = concurrency
        self.mine = mine
        self._measured: Backlog | None = None
        self._until = 0.0
        self._one_at_a_time = asyncio.Lock()

    async def page(self, _request: Request) -> JSONResponse:
        """Answer a request; 503 while the database is away."""
        try:
            return JSONResponse(self._document(await self._fresh()))
        except Unavailable as error:
            return JSONResponse({"error": str(error)}, status_code=503)

    async def _fresh(self) -> Backlog:
        async with self._one_at_a_time:
            if self._measured is None or time.monotonic() >= self._until:
                self._measured = await measure(self._database)
                self._until = time.monotonic() + _FRESH_SECONDS
            return self._measured

    def _document(self, backlog: Backlog) -> dict[str, object]:
        total, rounded = backlog.total, _rounded
        document: dict[str, object] = {
            "readyEntries": total.ready_entries,
            "readyInputs": total.ready_inputs,
            "isCapped": backlog.is_capped,
            "oldestReadySeconds": rounded(backlog.runnable_seconds),
            "inFlightInputs": total.running_inputs,
            "busyConsumers": total.busy_consumers,
            "capacityInputs": total.busy_consumers * self._concurrency,
            "backlogSeconds": rounded(total.work_seconds),
            "backlogSecondsPerConsumer": rounded(total.seconds_per_consumer(self._concurrency)),
            "kinds": {
                name: {
                    "readyEntries": work.ready_entries,
                    "readyInputs": work.ready_inputs,
                    "inFlightInputs": work.running_inputs,
                    "backlogSeconds": rounded(work.work_seconds),
                }
                for name, work in backlog.kinds.items()
            },
        }
        if self.mine is not None:
            running, slots = self.mine()
            document["thisConsumer"] = {"inFlightInputs": running, "capacityInputs": slots}
        return document


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
