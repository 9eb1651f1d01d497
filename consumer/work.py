"""From claim to deletion: process, settle, commit, and only then forget the message."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from consumer.telling import process_span, tell
from infra.settle import Settlement
from infra.telemetry.instruments import SILENT
from infra.telemetry.logs import traced
from infra.telemetry.tracing import continued

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from consumer.acknowledger import Acknowledger
    from consumer.executor import Executor, Runner
    from consumer.lease import Lease, Leases
    from consumer.pace import Paces
    from consumer.regulator import Regulator
    from consumer.releaser import Releaser
    from consumer.settler import Settler
    from infra.queue.protocol import Claim, ClaimedInput
    from infra.telemetry.instruments import Instruments
    from schema.outcome import Outcome

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Workshop:
    """Carries claims through, each in the order that is the guarantee."""

    def __init__(
        self,
        runners: Mapping[str, Runner],
        leases: Leases,
        settler: Settler,
        releaser: Releaser,
        acknowledger: Acknowledger,
        executor: Executor,
        paces: Paces,
        regulator: Regulator,
        *,
        instruments: Instruments = SILENT,
    ) -> None:
        self._instruments = instruments
        self._runners = runners
        self._leases = leases
        self._settler = settler
        self._releaser = releaser
        self._acknowledger = acknowledger
        self._executor = executor
        self._paces = paces
        self._regulator = regulator

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
                await self._executor.run(lease, self._runners[claim.kind], self._ended)
                await lease.settled()
                ended = await self._end(lease)
                lease.is_over = ended in ("settled", "released")
            if lease.is_over:
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

    async def _end(self, lease: Lease) -> str:
        """Give back what of a claim is not settled; say how it ended."""
        if lease.lost or lease.is_given_up or (lease.refused and lease.is_stopped):
            return "stopped" if lease.is_stopped else "lost"
        if not lease.remaining:
            return "settled"
        # Also where an outcome was refused as late: it may be in, and only its answer was lost.
        lease.is_given_back = True
        if await self._releaser.release(lease.claim):
            return "released"
        return "lost" if lease.refused else "abandoned"

    def _ended(
        self,
        lease: Lease,
        inputs: Sequence[ClaimedInput],
        outcomes: Sequence[Outcome],
        elapsed_seconds: float,
    ) -> None:
        """Hand over for settling what came of inputs that ran together."""
        lease.ran += len(inputs)
        lease.run_seconds += elapsed_seconds
        elapsed_ms = elapsed_seconds * 1000
        kind = lease.claim.kind
        self._paces.note(kind, elapsed_ms=elapsed_ms, inputs=len(inputs))
        self._regulator.note(kind, outcomes, elapsed_seconds)
        each_ms = round(elapsed_ms / len(inputs))
        self._settler.add(
            lease,
            [
                Settlement(lease.claim, input_, outcome, each_ms)
                for input_, outcome in zip(inputs, outcomes, strict=True)
            ],
        )
