"""From claim to deletion: process, settle, commit, and only then forget the message."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

import structlog

from consumer.telling import process_span, run_span, tell
from infra.settle import Settlement
from infra.telemetry.instruments import SILENT
from infra.telemetry.logs import traced
from infra.telemetry.tracing import continued
from schema.errors import HaulageError
from schema.statements.claim import release_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from consumer.acknowledger import Acknowledger
    from consumer.intake import Intake
    from consumer.lease import Lease, Leases
    from consumer.pace import Paces
    from consumer.settler import Settler
    from infra.database import Database
    from infra.queue.protocol import Claim, ClaimedInput
    from infra.telemetry.instruments import Instruments
    from schema.outcome import Outcome

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Runner(Protocol):
    """Runs the processor of one kind and says what came of each input; raises nothing else."""

    together: int

    async def run(self, claim: Claim, inputs: Sequence[ClaimedInput]) -> Sequence[Outcome]:
        """Process up to ``together`` inputs of the claim."""
        ...


class Workshop:
    """Carries claims through, each in the order that is the guarantee."""

    def __init__(
        self,
        database: Database,
        runners: Mapping[str, Runner],
        leases: Leases,
        settler: Settler,
        acknowledger: Acknowledger,
        intake: Intake,
        paces: Paces,
        *,
        stop: asyncio.Event,
        wake: Callable[[], None],
        instruments: Instruments = SILENT,
    ) -> None:
        self._instruments = instruments
        self._database = database
        self._runners = runners
        self._leases = leases
        self._settler = settler
        self._acknowledger = acknowledger
        self._intake = intake
        self._paces = paces
        self._stop = stop
        self._wake = wake

    async def carry(self, claim: Claim) -> None:
        """Process a claim, settle it, and forget its message once the commit is in.

        What was not started when the process was told to stop goes back at once, at no cost
        to anybody's attempts. A lost lease ends quietly: its message comes again and finds
        the truth in the database.
        """
        began = time.monotonic()
        with (
            process_span(self._instruments.tracing, claim) as span,
            traced(trace := continued(claim.trace, span), job=claim.job_key, entry=claim.entry_id),
        ):
            job_trace, claim = claim.trace, claim.continued(trace)
            with self._leases.hold(claim) as lease:
                lease.span, lease.job_trace = span, job_trace
                await self._process(lease)
                await lease.settled()
                if lease.refused or lease.lost:
                    ended = "stopped" if lease.is_stopped else "lost"
                elif lease.remaining:
                    ended = "released" if await self._release(lease) else "abandoned"
                else:
                    ended = "settled"
            if ended in ("settled", "released"):
                self._acknowledger.add(claim)
            else:
                self._acknowledger.drop(claim)
            tell(self._instruments.metrics, lease, ended=ended, began=began)
            log.info(
                "entry.done",
                ended=ended,
                kind=claim.kind,
                epoch=claim.epoch,
                inputs=len(claim.inputs),
                accepted=lease.accepted,
                refused=lease.refused,
                waited_ms=round(claim.waited_ms),
                elapsed_ms=round((time.monotonic() - began) * 1000),
            )

    async def _process(self, lease: Lease) -> None:
        """Run the inputs of a claim, each as soon as a slot is free, until told to stop.

        Once the lease is halted nothing further starts: its job was paused, or it is lost.
        """
        claim = lease.claim
        runner = self._runners[claim.kind]
        left = len(claim.inputs)
        try:
            async with asyncio.TaskGroup() as group:
                for start in range(0, len(claim.inputs), runner.together):
                    if lease.halted or not await self._slot(lease):
                        break
                    inputs = claim.inputs[start : start + runner.together]
                    left -= len(inputs)
                    if self._stop.is_set():
                        self._intake.free_slot(inputs=len(inputs))
                        break
                    task = group.create_task(self._run(lease, runner, inputs), name="process")
                    lease.running.add(task)
                    task.add_done_callback(lease.running.discard)
        finally:
            self._intake.forgo(inputs=left)

    async def _slot(self, lease: Lease) -> bool:
        """Wait for a free slot and take it; false when the claim was halted meanwhile."""
        with lease.waiting_to_start():
            await self._intake.take_slot()
            return True
        return False

    async def _run(self, lease: Lease, runner: Runner, inputs: Sequence[ClaimedInput]) -> None:
        began = time.monotonic()
        if lease.started_at is None:
            lease.started_at = began
        try:
            with run_span(self._instruments.tracing, lease.claim, inputs):
                outcomes = await runner.run(lease.claim, inputs)
        except asyncio.CancelledError:
            # Interrupted, because the lease is lost or the drain is over: nothing to record.
            return
        finally:
            self._intake.free_slot(inputs=len(inputs))
        elapsed = time.monotonic() - began
        lease.ran += len(inputs)
        lease.run_seconds += elapsed
        elapsed_ms = elapsed * 1000
        self._paces.note(lease.claim.kind, elapsed_ms=elapsed_ms, inputs=len(inputs))
        each_ms = round(elapsed_ms / len(inputs))
        self._settler.add(
            lease,
            [
                Settlement(lease.claim, input_, outcome, each_ms)
                for input_, outcome in zip(inputs, outcomes, strict=True)
            ],
        )

    async def _release(self, lease: Lease) -> bool:
        claim = lease.claim
        try:
            rows = await self._database.fetch(
                release_entries([claim.entry_id], [claim.epoch], delay_seconds=0.0)
            )
        except HaulageError as error:
            log.warning("entry.not_released", error=str(error), remedy="its lease ends by itself")
            return False
        except Exception:  # one entry that cannot be given back ends no other's work
            log.exception("entry.not_released", remedy="its lease ends by itself")
            return False
        if rows:
            self._wake()
        return bool(rows)
