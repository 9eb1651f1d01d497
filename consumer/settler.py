"""Group commit: what ended while the last commit ran goes in the next one.

At low load an outcome is committed at once; at high load hundreds share one commit.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import structlog
from asyncpg import DataError
from sqlalchemy.exc import DBAPIError

from consumer.telling import tell_failure
from infra.retry import jittered, sqlstate
from infra.settle import Settled, Settlement, settle
from infra.telemetry import names
from infra.telemetry.instruments import SILENT
from infra.telemetry.logs import traced
from schema.errors import Unavailable
from schema.lifecycle import InputStatus
from schema.outcome import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from opentelemetry.trace import Span

    from consumer.lease import Lease
    from infra.database import Database
    from infra.telemetry.instruments import Instruments
    from schema.outcome import Backoff

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# An input that waits for nothing takes two turns of the loop from its slot to its outcome.
_QUIET_TURNS = 3
_GATHERING_SECONDS = 0.05
_AWAY_BASE_SECONDS = 0.1
_AWAY_CAP_SECONDS = 2.0


class Settler:
    """Commits outcomes in batches, one commit at a time; tells when that ended a job early."""

    def __init__(
        self,
        database: Database,
        *,
        worker: str,
        backoffs: Mapping[str, Backoff],
        most: int,
        tell: Callable[[], None],
        wake: Callable[[], None],
        events: bool = False,
        instruments: Instruments = SILENT,
    ) -> None:
        self._instruments = instruments
        self._database = database
        self._worker = worker
        self._backoffs = backoffs
        self._most = most
        self._tell = tell
        self._wake = wake
        self._events = events
        self._waiting: list[tuple[Lease, Settlement]] = []
        self._wanted = asyncio.Event()
        self._given_up = False
        self._room = asyncio.Event()
        self._room.set()

    def add(self, lease: Lease, settlements: Sequence[Settlement]) -> None:
        """Hand over outcomes; ``lease.settled()`` says when they are committed."""
        lease.await_settling(len(settlements))
        self._waiting.extend((lease, settlement) for settlement in settlements)
        self._wanted.set()
        if len(self._waiting) >= self._most:
            self._room.clear()

    async def room(self) -> None:
        """Wait until less than a whole commit waits: claiming may not run ahead of settling."""
        await self._room.wait()

    async def run(self) -> None:
        """Commit what is handed over until cancelled; wait out a database that is away."""
        while True:
            await self._wanted.wait()
            await self._gather()
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            if not self._waiting:
                self._wanted.clear()
            if len(self._waiting) < self._most:
                self._room.set()
            if batch:
                await self._commit(batch)

    async def _gather(self) -> None:
        """Return when no more outcomes come at once, or enough wait for a commit.

        Where inputs cost next to nothing, outcomes come turn after turn of the loop. A commit costs
        nearly as much for one as for a hundred of them; where nothing else is at hand, none waits.
        """
        clock = asyncio.get_running_loop().time
        latest = clock() + _GATHERING_SECONDS
        quiet_turns = 0
        while quiet_turns < _QUIET_TURNS and clock() < latest:
            before = len(self._waiting)
            if before >= self._most:
                return
            await asyncio.sleep(0)
            quiet_turns = quiet_turns + 1 if len(self._waiting) == before else 0

    async def _commit(self, batch: Sequence[tuple[Lease, Settlement]]) -> None:
        """Commit a batch; one outcome that cannot be recorded does not hold up the others."""
        failures = 0
        while True:
            try:
                with self._instruments.tracing.together(
                    names.SETTLE,
                    (lease.job_trace or lease.claim.trace for lease, _ in batch),
                    parts=_spans(batch),
                    attributes={names.INPUTS: len(batch)},
                ):
                    lines = await settle(
                        self._database,
                        self._worker,
                        [settlement for _, settlement in batch],
                        backoffs=self._backoffs,
                        jitter=random.random,
                        events=self._events,
                    )
                break
            except Exception as error:
                if _is_unrecordable(error):
                    await self._part(batch, error)
                    return
                if not isinstance(error, Unavailable):
                    log.exception("settle.failed", inputs=len(batch))
                if self._given_up:
                    self._lose(batch)
                    return
                failures += 1
                pause = jittered(
                    failures, base_seconds=_AWAY_BASE_SECONDS, cap_seconds=_AWAY_CAP_SECONDS
                )
                if failures == 1:
                    log.warning("settle.away", inputs=len(batch), error=str(error))
                await asyncio.sleep(pause)
        self._instruments.metrics.settled(lines)
        if any(line.ended_early for line in lines):
            # Else the rest of the job would run on until the sweeper's next round.
            self._tell()
        if any(map(_leaves_work, lines)):
            # Else who relays or claims would notice at the next poll that something is due before.
            self._wake()
        for (lease, _), line in zip(batch, lines, strict=True):
            _log(lease, line)
            lease.note_settled(accepted=line.accepted)

    def give_up(self) -> None:
        """Try what waits once more, and no longer: the drain is over."""
        self._given_up = True

    def _lose(self, batch: Sequence[tuple[Lease, Settlement]]) -> None:
        log.error(
            "settle.given_up",
            inputs=len(batch),
            remedy="their leases end by themselves; each costs its input one attempt",
        )
        for lease, _ in batch:
            lease.note_settled(accepted=False)

    async def _part(self, batch: Sequence[tuple[Lease, Settlement]], error: Exception) -> None:
        """Halve a batch until the outcome that cannot be recorded stands alone, and refuse it."""
        if len(batch) > 1:
            middle = len(batch) // 2
            await self._commit(batch[:middle])
            await self._commit(batch[middle:])
            return
        ((lease, settlement),) = batch
        claim = settlement.claim
        with traced(claim.trace, job=claim.job_key, entry=claim.entry_id):
            log.error(
                "settle.unrecordable",
                ordinal=settlement.input.ordinal,
                kind=claim.kind,
                error=str(error)[:1_000],
            )
        reason = f"the outcome cannot be recorded: {type(error).__name__}"
        if isinstance(settlement.outcome, Refused) and settlement.outcome.message == reason:
            lease.note_settled(accepted=False)
            return
        refused = settlement._replace(outcome=Refused("BadOutcome", reason))
        await self._commit([(lease, refused)])


def _spans(batch: Sequence[tuple[Lease, Settlement]]) -> Iterator[Span]:
    """Give the span of each lease of a batch; nothing is looked up where there are none."""
    yield from {id(lease): lease.span for lease, _ in batch}.values()


def _leaves_work(line: Settled) -> bool:
    """Say whether an entry came of it: the input goes on, or its death is to be told."""
    verdict = line.verdict
    return line.accepted and (
        verdict.delay_seconds is not None or verdict.status is InputStatus.DLQ
    )


def _is_unrecordable(error: Exception) -> bool:
    """Say whether what was to be written is at fault: of a type, a form or a size not to be had."""
    state = sqlstate(error) or ""
    return isinstance(error, TypeError | ValueError | OverflowError) or (
        isinstance(error, DBAPIError)
        and (state.startswith(("22", "23", "54")) or isinstance(error.orig, DataError | TypeError))
    )


def _log(lease: Lease, line: Settled) -> None:
    """Log what an operator may have to act on; successes are told per claim."""
    settlement, verdict = line.settlement, line.verdict
    if line.accepted and verdict.error_class is None:
        return
    claim = settlement.claim
    about: dict[str, object] = {
        "ordinal": settlement.input.ordinal,
        "kind": claim.kind,
        "status": verdict.status.value,
        "attempt": settlement.input.attempts + 1,
        "max_attempts": claim.max_attempts,
        "error_class": verdict.error_class,
        "error": verdict.error_message,
        "retry_in_seconds": None
        if verdict.delay_seconds is None
        else round(verdict.delay_seconds, 1),
    }
    with traced(claim.trace, job=claim.job_key, entry=claim.entry_id):
        if line.accepted and verdict.status is InputStatus.NOT_FOUND:
            # A normal outcome, and of whole jobs at times.
            log.debug("input.not_found", **about)
            return
        tell_failure(lease, line)
        if not line.accepted:
            log.warning("input.refused_late", **about)
        elif verdict.status is InputStatus.DLQ:
            log.error("input.failed", **about)
        else:
            log.warning("input.failed", **about)
