"""Takes over lapsed leases: charges the attempt and issues each unfinished input by itself."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from dispatcher.bulkhead import Bulkhead
from infra.queue.protocol import Claim
from infra.row_by_row import RowByRow
from infra.settle import Settlement, settle
from infra.telemetry import names
from infra.telemetry.instruments import SILENT
from infra.telemetry.logs import traced
from infra.telemetry.tracing import continued
from schema.errors import Unavailable
from schema.outcome import Lapsed
from schema.statements.claim import REPAIRING, delete_empty_entry, take_over_lapsed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from infra.database import Database
    from infra.telemetry.instruments import Instruments
    from infra.telemetry.tracing import Attributes
    from schema.outcome import Backoff

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Reaper:
    """Repairs what a vanished consumer left: nothing waits longer than a lease and a round."""

    name = "reaper"

    def __init__(
        self,
        database: Database,
        *,
        lease_seconds: float,
        backoffs: Mapping[str, Backoff],
        most: int,
        wake: Callable[[], None],
        tell: Callable[[], None],
        events: bool = False,
        instruments: Instruments = SILENT,
    ) -> None:
        self._instruments = instruments
        self._rows = RowByRow(database, doing="take over")
        self._bulkhead = Bulkhead(database)
        self._lease_seconds = lease_seconds
        self._backoffs = backoffs
        self._most = most
        self._wake = wake
        self._tell = tell
        self._events = events

    async def once(self) -> int:
        """Repair up to a batch of lapsed leases."""
        statement = take_over_lapsed(self._lease_seconds, most=self._most)
        claims = [_lost(Claim.from_row(row)) for row in await self._rows.fetch(statement)]
        self._bulkhead.begin()
        locked: set[UUID] = set()
        for claim in claims:
            if claim.job_id in locked:
                continue  # its other entries would wait as long; they come again
            # What ends the round leaves the others until these leases have lapsed.
            with self._bulkhead.compartment(claim.entry_id) as part:
                await self._repair(claim)
            if isinstance(part.error, Unavailable):
                locked.add(claim.job_id)
            if part.news is not None:
                with traced(claim.trace, job=claim.job_key, entry=claim.entry_id):
                    log.error("reaper.failed", exc_info=part.news)
        if claims:
            self._wake()
        return len(claims)

    async def _repair(self, claim: Claim) -> None:
        about: Attributes = {
            names.JOB_KEY: claim.job_key,
            names.KIND: claim.kind,
            names.ENTRY_ID: claim.entry_id,
            names.LOST_WORKER: claim.worker,
            names.LAPSED_SECONDS: claim.waited_ms / 1_000,
        }
        with (
            self._instruments.tracing.one(
                names.REPAIR, claim.trace, origin=claim.origin, attributes=about
            ) as span,
            traced(trace := continued(claim.trace, span), job=claim.job_key, entry=claim.entry_id),
        ):
            await self._settle(claim.continued(trace))

    async def _settle(self, claim: Claim) -> None:
        if not claim.inputs:
            await self._bulkhead.fetch(delete_empty_entry(claim.entry_id, claim.epoch))
            log.error("reaper.empty_entry", remedy="run the doctor: counters may be off")
            return
        lapsed = Lapsed(claim.worker)
        settled = await settle(
            self._bulkhead,
            lapsed.worker,
            [Settlement(claim, input_, lapsed, None) for input_ in claim.inputs],
            backoffs=self._backoffs,
            jitter=random.random,
            events=self._events,
        )
        repaired = sum(line.accepted for line in settled)
        self._instruments.metrics.settled(settled)
        self._instruments.metrics.repaired(claim.kind, repaired)
        if any(line.ended_early for line in settled):
            self._tell()
        log.warning(
            "reaper.repaired",
            lost_worker=lapsed.worker,
            lapsed_ms=round(claim.waited_ms),
            inputs=repaired,
            dead=sum(line.verdict.delay_seconds is None for line in settled),
        )


def _lost(claim: Claim) -> Claim:
    """Give a claim in the name of the worker that lost it."""
    return replace(claim, worker=claim.worker.removeprefix(REPAIRING))
