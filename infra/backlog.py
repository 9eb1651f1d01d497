"""How much work there is, waits and runs, over the whole platform; measured, never guessed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import exc as sa_exc
from starlette.responses import JSONResponse

from infra.migrate import check_at_head
from infra.patience import within
from schema.errors import Unavailable
from schema.statements.gauges import measure_backlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Row
    from starlette.requests import Request

    from infra.database import Database

# Entries of a kind that are counted at most; more are as good as this many to who scales by it.
MOST_ENTRIES = 100_000
_FRESH_SECONDS = 5.0
# As patient as ``/readyz``. Whoever asks again at once after a failure is told the same.
_PATIENCE_SECONDS = 3.0
_FAILED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Work:
    """What is ready and what runs, of one kind or of all.

    ``work_seconds`` of what is ready are known once each of its kinds has run.
    """

    ready_entries: int = 0
    ready_inputs: int = 0
    running_inputs: int = 0
    work_seconds: float | None = 0.0

    @classmethod
    def from_row(cls, row: Row[Any]) -> Self:
        """Read a row of ``measure_backlog``."""
        return cls(row.ready_entries, row.ready_inputs, row.running_inputs, row.work_seconds)


@dataclass(frozen=True, slots=True)
class Backlog:
    """One measurement. ``is_capped``: there was more of some kind than was counted."""

    total: Work
    kinds: dict[str, Work]
    is_capped: bool
    busy_consumers: int
    runnable_seconds: float
    unsent_seconds: float
    unsent_event_seconds: float

    def seconds_per_consumer(self, concurrency: int) -> float | None:
        """Say how long the consumers that are busy now would take; none busy counts as one."""
        if self.total.work_seconds is None:
            return None
        return self.total.work_seconds / (max(self.busy_consumers, 1) * concurrency)


async def measure(database: Database, *, most: int = MOST_ENTRIES) -> Backlog:
    """Measure; raises ``Unavailable``."""
    rows = {row.kind: row for row in await database.fetch(measure_backlog(most=most))}
    total = rows.pop(None)
    return Backlog(
        Work.from_row(total),
        {kind: Work.from_row(row) for kind, row in rows.items()},
        total.is_capped,
        total.busy_consumers,
        total.runnable_seconds,
        total.unsent_seconds,
        total.unsent_event_seconds,
    )


class Scaling:
    """Answers ``/scaling``: the numbers by which the number of consumers is chosen.

    ``mine`` gives this process's running inputs and slots, where it is a consumer. The platform is
    measured every five seconds at most, however often and by whomever it is asked for; who asks
    meanwhile waits for the measurement under way, three seconds at most.
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
        # The last measurement, or why there was none.
        self._measured: Backlog | str = "nothing was measured yet"
        self._until = 0.0
        self._one_at_a_time = asyncio.Lock()

    async def page(self, _request: Request) -> JSONResponse:
        """Answer a request; 503 while the database is away, or has not our schema."""
        try:
            return JSONResponse(self._document(await self._fresh()))
        except Unavailable as error:
            return JSONResponse({"error": str(error)}, status_code=503)

    async def _fresh(self) -> Backlog:
        async with self._one_at_a_time:
            if time.monotonic() >= self._until:
                await self._measure()
            if isinstance(self._measured, str):
                raise Unavailable(self._measured)
            return self._measured

    async def _measure(self) -> None:
        try:
            self._measured = await within(_PATIENCE_SECONDS, self._measured_or_unmigrated())
        except TimeoutError:
            self._measured = f"no answer within {_PATIENCE_SECONDS:g} s"
        except Unavailable as error:
            self._measured = str(error)
        failed = isinstance(self._measured, str)
        self._until = time.monotonic() + (_FAILED_SECONDS if failed else _FRESH_SECONDS)

    async def _measured_or_unmigrated(self) -> Backlog:
        try:
            return await measure(self._database)
        except sa_exc.ProgrammingError:
            # Before a migration tables and columns are missing: then this says so.
            await check_at_head(self._database)
            raise

    def _document(self, backlog: Backlog) -> dict[str, object]:
        total, rounded = backlog.total, _rounded
        document: dict[str, object] = {
            "readyEntries": total.ready_entries,
            "readyInputs": total.ready_inputs,
            "isCapped": backlog.is_capped,
            "oldestReadySeconds": rounded(backlog.runnable_seconds),
            "inFlightInputs": total.running_inputs,
            "busyConsumers": backlog.busy_consumers,
            "capacityInputs": backlog.busy_consumers * self._concurrency,
            "backlogSeconds": rounded(total.work_seconds),
            "backlogSecondsPerConsumer": rounded(backlog.seconds_per_consumer(self._concurrency)),
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
