"""What a process counts and measures; without a meter it costs next to nothing.

Parts say what happened, once for many inputs where there are many; which instruments that moves
is decided here. Attributes are the kind and the outcome, and nothing that grows.
"""

from __future__ import annotations

import asyncio
import collections
from typing import TYPE_CHECKING, Final

from opentelemetry.metrics import NoOpMeter, Observation

from infra.telemetry import names
from schema.lifecycle import InputStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter

    from infra.settle import Settled

    Value = tuple[float, Mapping[str, str]]

_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 900.0, 3_600.0, 21_600.0, 86_400.0,
)  # fmt: skip
# As the conventions for HTTP have it.
_REQUEST_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_LAG_SECONDS = 0.5
_AGAIN = frozenset({InputStatus.RETRY_WAIT, InputStatus.PENDING})
_ENDS_OF_RUNS = (
    InputStatus.SUCCEEDED,
    InputStatus.SKIPPED,
    InputStatus.NOT_FOUND,
    InputStatus.RETRY_WAIT,
    InputStatus.DLQ,
)
_ENDS_OF_LAPSES = (InputStatus.PENDING, InputStatus.DLQ)
_RELAY_OUTCOMES = ("sent", "put off", "parked")


class Metrics:
    """The instruments of a process."""

    def __init__(self, meter: Meter | None = None) -> None:
        self.is_on = meter is not None
        self._meter: Meter = meter or NoOpMeter(names.SCOPE)
        counter, histogram = self._counter, self._histogram
        self._settled = counter(names.SETTLED, "{input}", "Outcomes of inputs that were committed")
        self._retried = counter(names.RETRIED, "{input}", "Inputs that will be tried again")
        self._died = counter(names.DIED, "{input}", "Inputs that gave up")
        self._lost = counter(names.LEASES_LOST, "{lease}", "Leases lost while work ran")
        self._duplicates = counter(
            names.DUPLICATE_MESSAGES, "{message}", "Messages for which nothing was left to do"
        )
        self._repaired = counter(
            names.LAPSES_REPAIRED, "{input}", "Inputs taken over from vanished consumers"
        )
        self._relayed = counter(names.RELAYED, "{message}", "Entries relayed, or not")
        self._relay_errors = counter(
            names.RELAY_ERRORS, "{error}", "Rounds of the relay without an answer"
        )
        self._queue_wait = histogram(names.QUEUE_WAIT, "From when an entry was due to its claim")
        self._run_time = histogram(names.RUN_TIME, "Run time of an input, the mean of its entry")
        self._end_to_end = histogram(
            names.END_TO_END, "From when a job was due to the settling of an entry of it"
        )
        self._pool_wait = histogram(names.POOL_WAIT, "Wait for a connection to the database")
        self._loop_lag = histogram(names.LOOP_LAG, "How late the event loop turns")
        self._requests = histogram(
            names.HTTP_SERVER_DURATION, "Duration of HTTP requests", _REQUEST_SECONDS
        )

    def consumes(self, kinds: Iterable[str]) -> None:
        """Let the counters of a consumer of these kinds stand at 0 before anything happens.

        A rate or an increase is taken between two values: a counter that comes into being with
        its first burst hides that burst from every alert.
        """
        for kind in kinds:
            self._show_outcomes(kind, _ENDS_OF_RUNS)
            self._lost.add(0, {names.METRIC_KIND: kind})
        self._duplicates.add(0)

    def dispatches(self, kinds: Iterable[str], *, queues: Iterable[str]) -> None:
        """Let the counters of a dispatcher stand at 0 before anything happens, as above."""
        for kind in kinds:
            self._show_outcomes(kind, _ENDS_OF_LAPSES)
            self._repaired.add(0, {names.METRIC_KIND: kind})
        for queue in queues:
            to_queue = {names.METRIC_QUEUE: str(queue)}
            for outcome in _RELAY_OUTCOMES:
                self._relayed.add(0, {**to_queue, names.METRIC_OUTCOME: outcome})
            self._relay_errors.add(0, to_queue)

    def _show_outcomes(self, kind: str, outcomes: Iterable[InputStatus]) -> None:
        of_kind = {names.METRIC_KIND: kind}
        for outcome in outcomes:
            self._settled.add(0, {**of_kind, names.METRIC_OUTCOME: outcome.value})
        self._retried.add(0, of_kind)
        self._died.add(0, of_kind)

    def settled(self, lines: Iterable[Settled]) -> None:
        """Note what a commit recorded."""
        if not self.is_on:
            return
        # By texts: the hash of an enumeration is computed in Python, and this is for every input.
        counts = collections.Counter(
            [
                (line.settlement.claim.kind, line.verdict.status._value_)
                for line in lines
                if line.accepted
            ]
        )
        for (kind, outcome), many in counts.items():
            of_kind, status = {names.METRIC_KIND: kind}, InputStatus(outcome)
            self._settled.add(many, {**of_kind, names.METRIC_OUTCOME: outcome})
            if status in _AGAIN:
                self._retried.add(many, of_kind)
            elif status is InputStatus.DLQ:
                self._died.add(many, of_kind)

    def entry_ended(
        self,
        kind: str,
        *,
        ended: str,
        waited_seconds: float,
        run_seconds: float | None,
        since_due_seconds: float,
    ) -> None:
        """Note the end of a claim; ``run_seconds`` is that of one input, if any ran."""
        if not self.is_on:
            return
        of_kind = {names.METRIC_KIND: kind}
        self._queue_wait.record(max(waited_seconds, 0.0), of_kind)
        if run_seconds is not None:
            self._run_time.record(run_seconds, of_kind)
        if ended == "settled":
            self._end_to_end.record(max(since_due_seconds, 0.0), of_kind)

    def lease_lost(self, kind: str) -> None:
        """Note that work was stopped because its lease was lost."""
        self._lost.add(1, {names.METRIC_KIND: kind})

    def duplicates(self, many: int) -> None:
        """Note messages for which there was nothing left to do."""
        self._duplicates.add(many)

    def repaired(self, kind: str, inputs: int) -> None:
        """Note inputs that were taken over from a vanished consumer."""
        self._repaired.add(inputs, {names.METRIC_KIND: kind})

    def relayed(self, queue: str, *, sent: int, put_off: int, parked: int, is_away: bool) -> None:
        """Note a round of the relay to a queue."""
        to_queue = {names.METRIC_QUEUE: queue}
        for outcome, many in zip(_RELAY_OUTCOMES, (sent, put_off, parked), strict=True):
            if many:
                self._relayed.add(many, {**to_queue, names.METRIC_OUTCOME: outcome})
        if is_away:
            self._relay_errors.add(1, to_queue)

    def waited_for_connection(self, seconds: float) -> None:
        """Note how long a unit of work waited for its connection."""
        self._pool_wait.record(seconds)

    def request(
        self, *, method: str, route: str | None, status: int | None, seconds: float
    ) -> None:
        """Note an HTTP request."""
        if self.is_on:
            about: dict[str, str | int] = {names.HTTP_METHOD: method}
            if route is not None:
                about[names.HTTP_ROUTE] = route
            if status is not None:
                about[names.HTTP_STATUS] = status
            self._requests.record(seconds, about)

    def gauge(
        self, name: str, unit: str, description: str, read: Callable[[], Sequence[Value]]
    ) -> None:
        """Let a value be read whenever somebody looks, from any thread."""

        def observe(_options: CallbackOptions) -> list[Observation]:
            return [Observation(value, attributes) for value, attributes in read()]

        self._meter.create_observable_gauge(name, [observe], unit, description)

    async def watch_loop(self) -> None:
        """Measure how late the loop turns, until cancelled."""
        if not self.is_on:
            return
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + _LAG_SECONDS
            await asyncio.sleep(_LAG_SECONDS)
            self._loop_lag.record(max(clock() - due, 0.0))

    def _counter(self, name: str, unit: str, description: str) -> Counter:
        return self._meter.create_counter(name, unit, description)

    def _histogram(
        self, name: str, description: str, bounds: Sequence[float] = _SECONDS
    ) -> Histogram:
        return self._meter.create_histogram(
            name, "s", description, explicit_bucket_boundaries_advisory=bounds
        )


NO_METRICS: Final = Metrics()
