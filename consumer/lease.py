"""Leases of claims in hand: kept alive while work runs, and the work stopped when one is lost."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
from opentelemetry.trace import INVALID_SPAN, Span

from consumer.hider import Hider
from infra.row_by_row import RowByRow, Target
from infra.telemetry.instruments import SILENT
from infra.telemetry.logs import traced
from schema.errors import HaulageError
from schema.lifecycle import ACTIVE_JOB_STATUSES, JobStatus
from schema.statements.claim import extend_leases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from consumer.executor import Run
    from infra.database import Database
    from infra.queue.protocol import Claim, Queue
    from infra.row_by_row import Changed
    from infra.telemetry.instruments import Instruments
    from schema.message import Trace
    from schema.statements.bound import Bound

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_ALIVE = ACTIVE_JOB_STATUSES | {JobStatus.PAUSED}
# A job is COMPLETED over work in hand only if another did that work: then its lease was lost.
_STOPPED = frozenset(JobStatus) - _ALIVE - {JobStatus.COMPLETED}
# The share of a lease that is not worth beginning anything while Postgres does not answer.
_MOMENTS = 0.05
# The share of a lease after which one is asked for again that could not be extended.
_SOON = 0.05


@dataclass(slots=True, eq=False)
class Lease:
    """A claim in hand: what runs of it, what waits for its commit, and what was settled."""

    claim: Claim
    expires_at: float
    lost: bool = False
    # It was lost because its job was stopped.
    is_stopped: bool = False
    # Nothing further of the claim starts: the lease is lost, or the job was paused.
    halted: bool = False
    # It ended with inputs that did not run, and is being given back with them.
    is_given_back: bool = False
    # Some outcome of it will never be recorded.
    is_given_up: bool = False
    # Nothing is left of it in Postgres: it was settled, or given back.
    is_over: bool = False
    # What takes its waiting inputs from the executor, while it has any there.
    withdraw: Callable[[], None] | None = None
    running: set[Run] = field(default_factory=set)
    unsettled: int = 0
    accepted: int = 0
    refused: int = 0
    # When the first input began to run, by the monotonic clock; what ran so far, and how long.
    started_at: float | None = None
    ran: int = 0
    run_seconds: float = 0.0
    span: Span = INVALID_SPAN
    # What the span carries on: the trace of the job.
    job_trace: Trace | None = None
    told_failures: int = 0
    _quiet: asyncio.Event = field(default_factory=asyncio.Event)

    def await_settling(self, inputs: int) -> None:
        """Note that outcomes of this many inputs wait for their commit."""
        self.unsettled += inputs
        self._quiet.clear()

    def note_settled(self, *, accepted: bool) -> None:
        """Note that the outcome of one input was committed, or refused as late."""
        self.unsettled -= 1
        if accepted:
            self.accepted += 1
        else:
            self.refused += 1
        if self.unsettled == 0:
            self._quiet.set()

    def note_given_up(self) -> None:
        """Note that the outcome of one input will not be recorded, though it ran.

        Such an entry is left to its lease, so that the run is charged: given back, it would run
        again for nothing, and again.
        """
        self.is_given_up = True
        self.note_settled(accepted=False)

    async def settled(self) -> None:
        """Return when no outcome waits for its commit."""
        if self.unsettled:
            await self._quiet.wait()

    @property
    def remaining(self) -> int:
        """Give the number of inputs of the claim that were not settled under this lease."""
        return len(self.claim.inputs) - self.accepted

    @property
    def is_at_work(self) -> bool:
        """Say whether anything of the claim runs or waits for a slot."""
        if self.is_given_back:
            return False
        return bool(self.running) or self.remaining > self.unsettled

    def halt(self) -> None:
        """Start nothing further; what runs goes on."""
        if not self.halted:
            self.halted = True
            if self.withdraw is not None:
                self.withdraw()

    def interrupt(self) -> None:
        """Tell whatever of the claim runs to end; what ended already is still settled."""
        for run in self.running:
            run.interrupt()


class Leases:
    """All leases of a consumer process, extended together."""

    def __init__(
        self,
        database: Database,
        queue: Queue,
        *,
        lease_seconds: float,
        control: asyncio.Event | None = None,
        instruments: Instruments = SILENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = instruments.metrics
        self._database = database
        self._rows = RowByRow(database, doing="extend the lease")
        self._hider = Hider(queue, lease_seconds=lease_seconds)
        self._lease_seconds = lease_seconds
        self._control = control or asyncio.Event()
        self._clock = clock
        self._held: dict[tuple[int, int], Lease] = {}
        # Claims that were left to their leases, and until when these last at most.
        self._left: dict[tuple[int, int], float] = {}
        # Whether a lease could not be extended just now: a commit of ours had its row, or Postgres
        # did not answer.
        self._is_urgent = False
        # Whether the failure that was told last was one of those that are foreseen.
        self._told: bool | None = None

    @contextmanager
    def hold(self, claim: Claim) -> Iterator[Lease]:
        """Keep the claim's lease alive inside the block."""
        left_seconds = self._lease_seconds - (time.monotonic() - claim.asked_at)
        if left_seconds < self._lease_seconds * 2 / 3:
            # Perhaps it was long in coming, perhaps only in being asked: Postgres is asked at once.
            self._control.set()
            left_seconds = max(left_seconds, self._lease_seconds / 3)
        lease = Lease(claim, self._clock() + left_seconds)
        self._held[claim.entry_id, claim.epoch] = lease
        try:
            yield lease
        finally:
            del self._held[claim.entry_id, claim.epoch]
            if not lease.is_over:
                self._left[claim.entry_id, claim.epoch] = self._clock() + self._lease_seconds

    @property
    def many(self) -> int:
        """Give the number of claims in hand."""
        return len(self._held)

    def knows(self, entry_id: int, epoch: int) -> bool:
        """Say whether a claim is in hand, or was left to its lease."""
        return (entry_id, epoch) in self._held or (entry_id, epoch) in self._left

    def interrupt_all(self) -> None:
        """Cancel everything that runs under any lease."""
        for lease in self._held.values():
            lease.interrupt()

    async def run(self) -> None:
        """Extend the leases three times per lease time, and at each control change.

        Their messages are hidden meanwhile, by a task that the leases never wait for.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._hider.run(), name="hider")
            while True:
                try:
                    async with asyncio.timeout(self._pause_seconds()):
                        await self._control.wait()
                except TimeoutError:
                    pass
                self._control.clear()
                await self.extend_once()

    def _pause_seconds(self) -> float:
        """Give the time to the next extension, or to the end of a lease if that is sooner."""
        now = self._clock()
        ends = [
            lease.expires_at - now
            for lease in self._held.values()
            if lease.is_at_work and lease.expires_at > now
        ]
        usual = self._lease_seconds * (_SOON if self._is_urgent else 1 / 3)
        return min([usual, *ends])

    async def extend_once(self) -> None:
        """Extend every lease in hand; stop the work of those that are lost.

        A paused job starts nothing further. The lease of a job that has ended is as good as lost:
        the sweeper is about to take the entry, or has.
        """
        asked_at = self._clock()
        self._left = {key: until for key, until in self._left.items() if until > asked_at}
        self._lose([lease for lease in self._held.values() if lease.expires_at <= asked_at])
        leases = [lease for lease in self._held.values() if lease.expires_at > asked_at]
        if not leases:
            self._is_urgent = False
            return
        try:
            rows, left = await self._database.answered_within(
                self._patience_seconds(leases, asked_at), self._extend(leases)
            )
        except Exception as error:  # noqa: BLE001 - leases end by themselves, and with them the work
            self._tell_not_extended(error, many=len(leases))
            self._is_urgent = True
            # Those that were claimed together end within moments: nothing is begun in between.
            soon = self._clock() + self._lease_seconds * _MOMENTS
            self._lose([lease for lease in leases if lease.expires_at <= soon])
            return
        self._told = None
        # What cannot be extended by itself ends by itself.
        leases = [lease for lease in leases if lease.claim.entry_id not in left]
        kept = {row.id for row in rows if row.is_held and row.job_status in _ALIVE}
        extended = {row.id for row in rows if row.is_extended}
        self._is_urgent = not kept <= extended
        paused = {row.id for row in rows if row.job_status == JobStatus.PAUSED}
        stopped = {row.id for row in rows if row.job_status in _STOPPED}
        for lease in leases:
            if lease.claim.entry_id in kept & extended:
                lease.expires_at = asked_at + self._lease_seconds
            if lease.claim.entry_id in paused:
                lease.halt()
            lease.is_stopped = lease.claim.entry_id in stopped
        self._lose([lease for lease in leases if lease.claim.entry_id not in kept])
        self._hider.hide([lease.claim for lease in leases if lease.claim.entry_id in kept])

    async def _extend(self, leases: Sequence[Lease]) -> Changed:
        claims = {lease.claim.entry_id: lease.claim for lease in leases}

        def these(entry_ids: Sequence[int]) -> Bound:
            asked = [claims[entry_id] for entry_id in entry_ids]
            return extend_leases(
                entry_ids,
                [claim.epoch for claim in asked],
                [claim.job_id for claim in asked],
                self._lease_seconds,
            )

        targets = [Target(claim.entry_id, claim.job_id) for claim in claims.values()]
        return await self._rows.fetch_these(targets, these)

    def _tell_not_extended(self, error: Exception, *, many: int) -> None:
        is_foreseen = isinstance(error, HaulageError)
        if is_foreseen is self._told:
            return
        self._told = is_foreseen
        if is_foreseen:
            log.warning("lease.not_extended", leases=many, error=str(error))
        else:
            log.error("lease.not_extended", leases=many, exc_info=error)

    def _patience_seconds(self, leases: Sequence[Lease], now: float) -> float:
        """Say how long an answer is worth waiting for: until the first lease that matters ends.

        One whose work is done matters no more: its commit may wait long for the job's row, and
        must not take the time from the others.
        """
        at_work = [lease for lease in leases if lease.is_at_work and not lease.lost]
        ends = [lease.expires_at - now for lease in at_work]
        return min(max(min(ends, default=self._lease_seconds), 0.0), self._lease_seconds / 3)

    def _lose(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            # A settled entry is gone, and so is its lease.
            if not lease.is_at_work or lease.lost:
                continue
            lease.lost = True
            lease.halt()
            claim, interrupted = lease.claim, len(lease.running)
            with traced(claim.trace, job=claim.job_key, entry=claim.entry_id):
                if lease.is_stopped:
                    log.info("entry.stopped", epoch=claim.epoch, interrupted=interrupted)
                else:
                    self._metrics.lease_lost(claim.kind)
                    log.warning("lease.lost", epoch=claim.epoch, interrupted=interrupted)
            lease.interrupt()
