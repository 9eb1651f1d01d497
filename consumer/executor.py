"""Runs the inputs of claims in a bounded number of slots, and bounds what runs there.

Claims have their slots in the order in which they came: the inputs of one start before those of
the next, so that an entry is done, and off the books, as early as can be. Each kind has a lane,
with as many slots as its limit says; a kind at its limit lets those pass that came after it.

A coroutine can swallow ``CancelledError`` and run on. It cannot be stopped then, but it must not
hold up others: after a grace its task is left alone, its slot stays taken, and the process, once
drained, ends without waiting for it. Where no slot is left, what waits is given back.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import suppress
from contextvars import copy_context
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import structlog

from consumer.lanes import Lane, Share
from consumer.processors.limits import cancelled, time_limit
from consumer.telling import run_span
from infra.telemetry.instruments import SILENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from consumer.intake import Intake
    from consumer.lease import Lease
    from infra.queue.protocol import Claim, ClaimedInput
    from infra.telemetry.instruments import Instruments
    from schema.outcome import Outcome

    Told = Callable[[Lease, Sequence[ClaimedInput], Sequence[Outcome], float], None]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Runner(Protocol):
    """Runs the processor of one kind and says what came of each input; raises nothing else."""

    together: int

    async def run(self, claim: Claim, inputs: Sequence[ClaimedInput]) -> Sequence[Outcome]:
        """Process up to ``together`` inputs of the claim."""
        ...


class _State(Enum):
    RUNS = "nobody told it to end"
    TOO_LONG = "told to end at its time limit"
    INTERRUPTED = "told to end, and nothing is to be recorded of it"
    LEFT = "left alone, since it did not end"


class Run:
    """Inputs of a claim that are being processed in one call, in a task of its own."""

    __slots__ = ("_executor", "began", "inputs", "share", "state", "task", "timer")

    def __init__(
        self, executor: Executor, share: Share, inputs: Sequence[ClaimedInput], began: float
    ) -> None:
        self._executor = executor
        self.share = share
        self.inputs = inputs
        self.began = began
        self.state = _State.RUNS
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[Sequence[Outcome]]

    def interrupt(self) -> None:
        """Tell it to end; what ends in spite of that has its outcome."""
        if self.state is _State.RUNS:
            self._executor.end(self, _State.INTERRUPTED)


class Executor:
    """Runs inputs as slots become free."""

    def __init__(
        self,
        intake: Intake,
        *,
        slots: int,
        stop: asyncio.Event,
        grace_seconds: float,
        limits_seconds: Mapping[str, float | None],
        instruments: Instruments = SILENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slots = slots
        self.withheld = 0
        self._clock = clock
        self._limit = slots
        # Slots in which something may start: below 0 while more run than may now.
        self._free = slots
        self._lanes: dict[str, Lane] = {}
        self._numbers = itertools.count()
        self._intake = intake
        self._stop = stop
        self._grace_seconds = grace_seconds
        self._limits_seconds = limits_seconds
        self._tracing = instruments.tracing
        # Nobody else holds on to what was left alone, and it still runs.
        self._left: set[Run] = set()

    @property
    def capacity(self) -> int:
        """Give the number of slots that may be used now, by all kinds together."""
        of_kinds = sum(lane.limit for lane in self._lanes.values()) or self.slots
        return min(self._usable, of_kinds)

    @property
    def _usable(self) -> int:
        return min(self.slots - self.withheld, self._limit)

    def limit(self, slots: int, of_kinds: Mapping[str, int]) -> None:
        """Use no more than so many slots from now on, and of each kind; what runs goes on."""
        before = self._usable
        self._limit = slots
        self._free += self._usable - before
        for kind, limit in of_kinds.items():
            self._lane(kind).limit = limit
        self.fill()

    def _lane(self, kind: str) -> Lane:
        lane = self._lanes.get(kind)
        if lane is None:
            lane = self._lanes[kind] = Lane(kind, self.slots)
        return lane

    async def run(self, lease: Lease, runner: Runner, told: Told) -> None:
        """Run the inputs of a claim; return when none of it runs and none will start.

        ``told`` is called with what came of those that ran together, and how many seconds they
        took. None starts once the lease is halted or the process told to stop.
        """
        lane = self._lane(lease.claim.kind)
        share = Share(lease, runner, told, copy_context(), lane, next(self._numbers), self._clock())
        lane.queue.append(share)
        lane.waiting += share.waiting
        lease.withdraw = lambda: self._remove(share)
        if lease.halted:
            self._remove(share)
        self.fill()
        try:
            if not self._is_over(share):
                await share.ended.wait()
        finally:
            if not self._is_over(share):  # cancelled
                self._remove(share)
                lease.interrupt()
                while not share.ended.is_set():
                    with suppress(asyncio.CancelledError):  # told again; the grace is short anyway
                        await share.ended.wait()
            lease.withdraw = None
        if share.error is not None:
            raise share.error

    def fill(self) -> None:
        """Start what may start; to be called when the process was told to stop, too.

        What waits is given back when nothing will start any more, or no slot is left for it.
        """
        if self._stop.is_set() or self.withheld == self.slots:
            for lane in self._lanes.values():
                while lane.queue:
                    self._withdraw(lane.queue.popleft())
            return
        while self._free > 0 and (share := self._next()) is not None:
            self._start(share)

    def _next(self) -> Share | None:
        """Give the claim that came first of those that may have another slot."""
        first: Share | None = None
        for lane in self._lanes.values():
            if lane.waiting and lane.running < lane.limit:
                share = lane.first()
                if first is None or share.number < first.number:
                    first = share
        return first

    def least_seconds(self, kind: str) -> float:
        """Say how long an input of a kind takes at least, by those that run now."""
        lane = self._lanes.get(kind)
        return 0.0 if lane is None else lane.least_seconds(self._clock())

    def give_back(self, within_seconds: float, input_seconds: Callable[[str], float]) -> int:
        """Give back the claims that will not begin within so long; give how many there were.

        Of a claim that has begun, nothing could be given back before its runs end. How long an
        input takes is what its kind took so far; where nothing starts at all, nobody knows, and
        it takes at least as long again as it took until now.
        """
        now, usable, many = self._clock(), max(1, self.capacity), 0
        for kind, lane in self._lanes.items():
            seconds = input_seconds(kind) / min(lane.limit, usable)
            while lane.queue and lane.queue[-1].next == 0:
                share = lane.queue[-1]
                in_vain = now - max(share.came_at, lane.last_start_at)
                if max((lane.waiting - share.waiting) * seconds, in_vain) <= within_seconds:
                    break
                lane.queue.pop()
                self._withdraw(share)
                many += 1
        return many

    def _start(self, share: Share) -> None:
        lease, runner = share.lease, share.runner
        inputs = lease.claim.inputs[share.next : share.next + runner.together]
        run = Run(self, share, inputs, self._clock())
        share.next += len(inputs)
        share.running += 1
        lane = share.lane
        lane.waiting -= len(inputs)
        lane.running += 1
        lane.last_start_at, lane.last_start_inputs = run.began, len(inputs)
        self._free -= 1
        if lease.started_at is None:
            lease.started_at = run.began
        loop = asyncio.get_running_loop()
        # What a processor sets in its context is gone with its run.
        run.task = loop.create_task(
            self._run(lease.claim, runner, inputs), name="processor", context=share.context.copy()
        )
        lease.running.add(run)
        run.task.add_done_callback(lambda _: self._done(run), context=share.context)
        limit = self._limits_seconds.get(lease.claim.kind)
        if limit is not None:
            run.timer = loop.call_later(
                limit, self.end, run, _State.TOO_LONG, context=share.context
            )

    async def _run(
        self, claim: Claim, runner: Runner, inputs: Sequence[ClaimedInput]
    ) -> Sequence[Outcome]:
        with run_span(self._tracing, claim, inputs):
            return await runner.run(claim, inputs)

    def end(self, run: Run, state: _State) -> None:
        """Tell a run to end, and leave it alone when it has not after the grace."""
        run.state = state
        run.task.cancel()
        if run.timer is not None:
            run.timer.cancel()
        loop = asyncio.get_running_loop()
        run.timer = loop.call_later(
            self._grace_seconds, self._leave, run, context=run.share.context
        )

    def _done(self, run: Run) -> None:
        """Note that the task of a run has ended."""
        if run.timer is not None:
            run.timer.cancel()
        if run.state is _State.LEFT:
            self._came_back(run)
            return
        self._free += 1
        run.share.lane.running -= 1
        outcomes: Sequence[Outcome] | None
        error = None if run.task.cancelled() else run.task.exception()
        if run.state is _State.TOO_LONG:
            outcomes = self._time_limit(run)
        elif error is not None:
            # A runner raises none: what gets through is meant to end the process.
            run.share.error = error
            self._remove(run.share)
            run.share.lease.interrupt()
            outcomes = None
        elif not run.task.cancelled():
            # What ended in spite of its cancellation has an outcome, and may keep it.
            outcomes = run.task.result()
        else:
            gave_itself_up = run.state is _State.RUNS
            outcomes = [cancelled()] * len(run.inputs) if gave_itself_up else None
        self._close(run, outcomes)

    def _leave(self, run: Run) -> None:
        """Leave a run alone that did not end when it was told to; its slot stays taken."""
        outcomes = self._time_limit(run) if run.state is _State.TOO_LONG else None
        run.state = _State.LEFT
        before = self._usable
        self.withheld += 1
        # Where fewer slots are in use than there are, another one takes its place.
        self._free += 1 + self._usable - before
        run.share.lane.running -= 1
        self._left.add(run)
        self._intake.resize(self.capacity)
        log.error(
            "processor.abandoned",
            **_about(run),
            grace_seconds=self._grace_seconds,
            slots_withheld=self.withheld,
            slots=self.slots,
            remedy="it swallows CancelledError; mend it, or give its kind isolation='process'",
        )
        self._close(run, outcomes)

    def _came_back(self, run: Run) -> None:
        self._left.discard(run)
        before = self._usable
        self.withheld -= 1
        self._free += self._usable - before
        self._intake.resize(self.capacity)
        error = None if run.task.cancelled() else run.task.exception()
        log.warning("processor.came_back", **_about(run), error=error and type(error).__name__)
        self.fill()

    def _close(self, run: Run, outcomes: Sequence[Outcome] | None) -> None:
        """Tell what came of a run, and let what waits for its slot start."""
        share = run.share
        share.lease.running.discard(run)
        share.running -= 1
        self._intake.forgo(share.lane.kind, inputs=len(run.inputs))
        if outcomes is not None:
            share.told(share.lease, run.inputs, outcomes, self._clock() - run.began)
        self.fill()
        if self._is_over(share):
            share.ended.set()

    def _remove(self, share: Share) -> None:
        """Take a claim out of its lane."""
        with suppress(ValueError):  # its last input has started
            share.lane.queue.remove(share)
        self._withdraw(share)

    def _withdraw(self, share: Share) -> None:
        """Start nothing further of a claim that is in no lane; what runs goes on."""
        waiting = share.waiting
        share.lane.waiting -= waiting
        share.next += waiting
        self._intake.forgo(share.lane.kind, inputs=waiting)
        if self._is_over(share):
            share.ended.set()

    @staticmethod
    def _is_over(share: Share) -> bool:
        return not share.running and not share.waiting

    def _time_limit(self, run: Run) -> Sequence[Outcome]:
        limit = self._limits_seconds[run.share.lease.claim.kind]
        assert limit is not None, "nothing is too long without a limit"
        return [time_limit(limit)] * len(run.inputs)


def _about(run: Run) -> dict[str, object]:
    claim = run.share.lease.claim
    return {
        "kind": claim.kind,
        "job": claim.job_key,
        "entry": claim.entry_id,
        "ordinals": [input_.ordinal for input_ in run.inputs][:10],
    }
