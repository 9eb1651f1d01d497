"""Measures the whole platform for its metrics, by one dispatcher at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.backlog import Backlog, Work, measure
from infra.telemetry import names
from schema.statements.gauges import count_letters, hold_duty

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from infra.database import Database
    from infra.telemetry.metrics import Metrics, Value

_MOST_LETTERS, _MOST_CAUSES = 100_000, 1_000
_NOTHING = Work()


class Gauges:
    """Whoever holds the duty shows what it measured last; the others show nothing."""

    name = "gauges"

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        *,
        worker: str,
        interval_seconds: float,
        concurrency: int,
    ) -> None:
        self._database = database
        self._worker = worker
        # A few rounds: who holds it goes on, and when it is gone another soon follows.
        self._held_seconds = 4 * interval_seconds
        self._concurrency = concurrency
        self._backlog: Backlog | None = None
        self._kinds: tuple[str, ...] = ()
        self._letters = self._causes = 0
        self._show(metrics)

    async def once(self) -> int:
        """Measure once, if that is for this worker to do; finds nothing that makes it go on."""
        statement = hold_duty(self.name, self._worker, self._held_seconds)
        if not await self._database.fetch(statement):
            self._backlog = None
            return 0
        (row,) = await self._database.fetch(
            count_letters(most=_MOST_LETTERS, most_causes=_MOST_CAUSES)
        )
        self._letters, self._causes = row.letters, row.causes
        self._backlog = await measure(self._database)
        # Read from other threads: replaced, never changed.
        self._kinds = tuple(dict.fromkeys((*self._kinds, *self._backlog.kinds)))
        return 0

    def _show(self, metrics: Metrics) -> None:
        entries, inputs, seconds = "{entry}", "{input}", "s"
        for name, unit, description, read in (
            (names.OLDEST_RUNNABLE, seconds, "Age of the oldest entry that is due and waits",
             lambda it: [(it.runnable_seconds, {})]),
            (names.OUTBOX_LAG, seconds, "Age of the oldest entry that is due and was not sent",
             lambda it: [(it.unsent_seconds, {})]),
            (names.BACKLOG_ENTRIES, entries, "Entries that are due and wait",
             lambda it: self._by_kind(it, "ready_entries")),
            (names.BACKLOG_INPUTS, inputs, "Inputs that are due and wait",
             lambda it: self._by_kind(it, "ready_inputs")),
            (names.RUNNING_INPUTS, inputs, "Inputs under a live lease",
             lambda it: self._by_kind(it, "running_inputs")),
            (names.BUSY_CONSUMERS, "{consumer}", "Consumers that hold a lease",
             lambda it: [(it.total.busy_consumers, {})]),
            (names.BACKLOG_SECONDS, seconds, "How long the busy consumers take for what waits",
             self._seconds),
            (names.DEAD_LETTERS, inputs, "Inputs in the DLQ, 100,000 at most",
             lambda _: [(self._letters, {})]),
            (names.DEAD_LETTER_CAUSES, "{fingerprint}", "Their different causes, 1,000 at most",
             lambda _: [(self._causes, {})]),
        ):  # fmt: skip
            metrics.gauge(name, unit, description, self._reading(read))

    def _reading(self, read: Callable[[Backlog], Sequence[Value]]) -> Callable[[], Sequence[Value]]:
        def shown() -> Sequence[Value]:
            backlog = self._backlog
            return () if backlog is None else read(backlog)

        return shown

    def _seconds(self, backlog: Backlog) -> Sequence[Value]:
        seconds = backlog.total.seconds_per_consumer(self._concurrency)
        return () if seconds is None else [(seconds, {})]

    def _by_kind(self, backlog: Backlog, field: str) -> Sequence[Value]:
        """Give the value of each kind that ever had work here: one that is done shows 0."""
        return [
            (getattr(backlog.kinds.get(kind, _NOTHING), field), {names.METRIC_KIND: kind})
            for kind in self._kinds
        ]
