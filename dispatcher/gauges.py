"""Measures the whole platform for its metrics, by one dispatcher at a time."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from infra.backlog import Backlog, Work, measure
from infra.telemetry import names
from schema.errors import Unavailable
from schema.lifecycle import EntryType
from schema.statements.gauges import count_letters, hold_duty, release_duty

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from infra.database import Database
    from infra.telemetry.metrics import Metrics, Value

_MOST_LETTERS, _MOST_CAUSES = 100_000, 1_000
_RELEASE_SECONDS = 2.0
_NOTHING = Work()


@dataclass(frozen=True, slots=True)
class _Measured:
    """What was measured under the duty, and until when it may be shown."""

    backlog: Backlog
    letters: int
    causes: int
    until: float


class Gauges:
    """Whoever holds the duty shows what it measured last; the others show nothing.

    It is shown until the duty would have lapsed, so that nobody shows what is old, and no two show
    anything at once. Leaving the context gives the duty up: another may measure at once.
    """

    name = "gauges"

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        *,
        worker: str,
        interval_seconds: float,
        concurrency: int,
        relays_inputs: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._worker = worker
        # A few rounds: who holds it goes on, and when it is gone another soon follows.
        self._held_seconds = 4 * interval_seconds
        self._concurrency = concurrency
        self._relays_inputs = relays_inputs
        self._clock = clock
        self._is_holder = False
        # Read from other threads: replaced, never changed.
        self._measured: _Measured | None = None
        self._kinds: tuple[str, ...] = ()
        self._show(metrics)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._measured = None
        if self._is_holder:
            with suppress(Unavailable, TimeoutError):  # then it lapses
                async with asyncio.timeout(_RELEASE_SECONDS):
                    await self._database.fetch(release_duty(self.name, self._worker))

    async def once(self) -> int:
        """Measure once, if that is for this worker to do; finds nothing that makes it go on."""
        try:
            self._measured = await self._measure()
        except BaseException:
            self._measured = None
            raise
        if self._measured is not None:
            self._kinds = tuple(dict.fromkeys((*self._kinds, *self._measured.backlog.kinds)))
        return 0

    async def _measure(self) -> _Measured | None:
        # Before it is asked for: the database counts from later.
        until = self._clock() + self._held_seconds
        statement = hold_duty(self.name, self._worker, self._held_seconds)
        self._is_holder = bool(await self._database.fetch(statement))
        if not self._is_holder:
            return None
        (row,) = await self._database.fetch(
            count_letters(most=_MOST_LETTERS, most_causes=_MOST_CAUSES)
        )
        return _Measured(await measure(self._database), row.letters, row.causes, until)

    def _show(self, metrics: Metrics) -> None:
        entries, inputs, seconds = "{entry}", "{input}", "s"
        for name, unit, description, read in (
            (names.OLDEST_RUNNABLE, seconds, "Age of the oldest entry that is due and waits",
             lambda it: [(it.backlog.runnable_seconds, {})]),
            (names.OUTBOX_LAG, seconds, "Age of the oldest entry that is due and was not sent",
             lambda it: self._lags(it.backlog)),
            (names.BACKLOG_ENTRIES, entries, "Entries that are due and wait",
             lambda it: self._by_kind(it.backlog, "ready_entries")),
            (names.BACKLOG_INPUTS, inputs, "Inputs that are due and wait",
             lambda it: self._by_kind(it.backlog, "ready_inputs")),
            (names.RUNNING_INPUTS, inputs, "Inputs under a live lease",
             lambda it: self._by_kind(it.backlog, "running_inputs")),
            (names.BUSY_CONSUMERS, "{consumer}", "Consumers that hold a lease",
             lambda it: [(it.backlog.busy_consumers, {})]),
            (names.BACKLOG_SECONDS, seconds, "How long the busy consumers take for what waits",
             lambda it: self._seconds(it.backlog)),
            (names.DEAD_LETTERS, inputs, "Inputs in the DLQ, 100,000 at most",
             lambda it: [(it.letters, {})]),
            (names.DEAD_LETTER_CAUSES, "{fingerprint}", "Their different causes, 1,000 at most",
             lambda it: [(it.causes, {})]),
        ):  # fmt: skip
            metrics.gauge(name, unit, description, self._reading(read))

    def _reading(
        self, read: Callable[[_Measured], Sequence[Value]]
    ) -> Callable[[], Sequence[Value]]:
        def shown() -> Sequence[Value]:
            measured = self._measured
            if measured is None or self._clock() >= measured.until:
                return ()
            return read(measured)

        return shown

    def _seconds(self, backlog: Backlog) -> Sequence[Value]:
        seconds = backlog.seconds_per_consumer(self._concurrency)
        return () if seconds is None else [(seconds, {})]

    def _by_kind(self, backlog: Backlog, field: str) -> Sequence[Value]:
        """Give the value of each kind that ever had work here: one that is done shows 0."""
        return [
            (getattr(backlog.kinds.get(kind, _NOTHING), field), {names.METRIC_KIND: kind})
            for kind in self._kinds
        ]

    def _lags(self, backlog: Backlog) -> Sequence[Value]:
        """Give the lag of each queue: one that is silent must not hide behind the other.

        Without SQS nobody relays inputs: that they wait says nothing of a relay.
        """
        lags = [(backlog.unsent_event_seconds, {names.METRIC_QUEUE: EntryType.EVENT.value})]
        if self._relays_inputs:
            inputs = {names.METRIC_QUEUE: EntryType.INPUTS.value}
            lags.insert(0, (backlog.unsent_seconds, inputs))
        return lags
