"""Group commit: what ended while the last commit ran goes in the next one.

At low load an outcome is committed at once; at high load hundreds share one commit. A job that
somebody holds a row of, or whose rows take too long to write, is put aside, and the others go on.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left, bisect_right
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import structlog

from consumer.keeper import HELD_REMEDY, Keeper
from consumer.telling import tell_failure
from infra.database import first_line
from infra.patience import shortened
from infra.retry import is_lock_timeout, is_of_a_row, is_too_slow, jittered, sleep_unless
from infra.settle import Settled, Settlement, settle
from infra.telemetry import names
from infra.telemetry.instruments import SILENT
from infra.telemetry.logs import traced
from schema.errors import Unavailable
from schema.lifecycle import InputStatus
from schema.outcome import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from uuid import UUID

    from opentelemetry.trace import Span

    from consumer.lease import Lease
    from infra.database import Database
    from infra.queue.protocol import Claim
    from infra.telemetry.instruments import Instruments
    from schema.outcome import Backoff

    Waiting = tuple[Lease, Settlement]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# An input that waits for nothing takes two turns of the loop from its slot to its outcome.
_QUIET_TURNS = 3
_GATHERING_SECONDS = 0.05
_AWAY_BASE_SECONDS = 0.1
_AWAY_CAP_SECONDS = 2.0
_PATIENCE_OF_A_PART = 0.25
_LEAST_COMMIT_SECONDS = 0.25
# The server ends a statement first, where it has the limit, and says so.
_GRACE_SECONDS = 1.0
_ASIDE_REMEDY = f"{HELD_REMEDY}; if nobody does, see why Postgres takes so long to write them"


class _Patience(NamedTuple):
    """How long a row is waited for, and a commit; and how often one job may take too long."""

    lock_seconds: float
    commit_seconds: float
    times: int


class Settler:
    """Commits outcomes in batches, one commit at a time; tells when that ended a job early."""

    def __init__(
        self,
        database: Database,
        *,
        worker: str,
        backoffs: Mapping[str, Backoff],
        most: int,
        lock_seconds: float,
        commit_seconds: float,
        statement_seconds: float,
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
        self._patience = _Patience(lock_seconds, commit_seconds, 2)
        self._statement_seconds = max(commit_seconds, statement_seconds + _GRACE_SECONDS)
        self._waiting: list[Waiting] = []
        self._wanted = asyncio.Event()
        # Set when the drain is over: what cannot be settled at once is lost.
        self.given_up = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._aside: Keeper[Waiting] = Keeper(
            self._commit_aside,
            self._lose,
            tell_held=_tell_put_aside,
            tell_free=_tell_caught_up,
            most=most,
            lock_seconds=lock_seconds,
            given_up=self.given_up,
        )

    @property
    def shunned(self) -> dict[UUID, float]:
        """Give the jobs of which nothing is to be claimed: what is given changes with them."""
        return self._aside.held

    def add(self, lease: Lease, settlements: Sequence[Settlement]) -> None:
        """Hand over outcomes; ``lease.settled()`` says when they are committed."""
        lease.await_settling(len(settlements))
        waiting = [(lease, settlement) for settlement in settlements]
        if self._aside.takes(lease.claim, waiting):
            return
        self._waiting.extend(waiting)
        self._wanted.set()
        if len(self._waiting) >= self._most:
            self._room.clear()

    async def room(self) -> None:
        """Wait until less than a whole commit waits: claiming may not run ahead of settling."""
        while not (self._room.is_set() and self._aside.room.is_set()):
            await self._room.wait()
            await self._aside.room.wait()

    async def run(self) -> None:
        """Commit what is handed over until cancelled; wait out a database that is away."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._settle(), name="settling")
            group.create_task(self._aside.run(), name="settling aside")

    async def _settle(self) -> None:
        while True:
            await self._wanted.wait()
            await self._gather()
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            if not self._waiting:
                self._wanted.clear()
            if len(self._waiting) < self._most:
                self._room.set()
            # What came before its job was put aside.
            batch = [each for each in batch if not self._aside.takes(each[0].claim, [each])]
            if batch:
                for each in await self._commit(batch, self._patience):
                    self._aside.put_aside(each[0].claim, [each])

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

    async def _commit_aside(
        self, batch: Sequence[Waiting], lock_seconds: float
    ) -> Sequence[Waiting]:
        """Commit outcomes of a job that is put aside: they may take as long as Postgres lets them.

        No other's lease waits for that.
        """
        return await self._commit(batch, _Patience(lock_seconds, self._statement_seconds, 1))

    async def _commit(self, batch: Sequence[Waiting], patience: _Patience) -> list[Waiting]:
        """Commit a batch but for what stands still: a row is in other hands, or takes too long.

        That is given back. One outcome that cannot be recorded holds up no other either.
        """
        error = await self._commit_together(batch, patience)
        if len(batch) == 1 and error is not None and not isinstance(error, Unavailable):
            # Once more: the work is done, and what stood in its way may have passed.
            error = await self._commit_together(batch, patience)
        if error is None:
            return []
        if not isinstance(error, Unavailable):
            if len(batch) == 1:
                return await self._refuse(*batch[0], error, patience)
        elif _is_of_one_job(batch):
            return list(batch)
        elif is_too_slow(error):
            return await self._commit_apart(batch, patience)
        else:
            # Less for each part: however many jobs are held, it costs but twice as much as one.
            patience = patience._replace(
                lock_seconds=shortened(patience.lock_seconds, _PATIENCE_OF_A_PART)
            )
        first, second = _halves(batch)
        return [*await self._commit(first, patience), *await self._commit(second, patience)]

    async def _commit_apart(self, batch: Sequence[Waiting], patience: _Patience) -> list[Waiting]:
        """Commit each job by itself: a part that takes too long would hold the leases in it.

        The more of them do, the less time each has.
        """
        left: list[Waiting] = []
        seconds = patience.commit_seconds * _PATIENCE_OF_A_PART
        for _, part in groupby(sorted(batch, key=_job), key=_job):
            stuck = await self._commit(list(part), _Patience(patience.lock_seconds, seconds, 1))
            if stuck:
                left += stuck
                seconds = max(_LEAST_COMMIT_SECONDS, shortened(seconds))
        if not (left or self.given_up.is_set()):
            log.info("settle.recovered", inputs=len(batch), after_failures=1)
        return left

    async def _commit_together(
        self, batch: Sequence[Waiting], patience: _Patience
    ) -> Exception | None:
        """Commit a batch once the database is there; give what part of it stands in the way.

        That it takes too long is no word of the database's being away where that answers others:
        it is given once it did so often enough, and of several jobs at once.
        """
        failures = in_vain = 0
        said = ""
        while True:
            is_last = self.given_up.is_set()
            try:
                await self._record(batch, patience)
            except Exception as error:
                if is_lock_timeout(error) or is_of_a_row(error):
                    return error
                if not isinstance(error, Unavailable) and said != first_line(error):
                    said = first_line(error)
                    log.exception("settle.failed", inputs=len(batch))
                if is_last:
                    self._lose(batch)
                    return None
                failures += 1
                if failures == 1:
                    log.warning("settle.away", inputs=len(batch), error=str(error))
                is_there = is_too_slow(error) and await self._database.answers()
                in_vain = in_vain + 1 if is_there else 0
                if in_vain >= (patience.times if _is_of_one_job(batch) else 1):
                    return error
                pause = jittered(
                    failures, base_seconds=_AWAY_BASE_SECONDS, cap_seconds=_AWAY_CAP_SECONDS
                )
                await sleep_unless(self.given_up)(pause)
            else:
                if failures:
                    log.info("settle.recovered", inputs=len(batch), after_failures=failures)
                return None

    async def _record(self, batch: Sequence[Waiting], patience: _Patience) -> None:
        """Record a batch in one commit, and tell whoever wants to know."""
        with self._instruments.tracing.together(
            names.SETTLE,
            (lease.job_trace or lease.claim.trace for lease, _ in batch),
            parts=_spans(batch),
            attributes={names.INPUTS: len(batch)},
        ):
            settling = settle(
                self._database,
                self._worker,
                [settlement for _, settlement in batch],
                backoffs=self._backoffs,
                jitter=random.random,
                events=self._events,
                lock_seconds=patience.lock_seconds,
            )
            lines = await self._database.answered_within(patience.commit_seconds, settling)
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
        self.given_up.set()

    def _lose(self, batch: Sequence[Waiting]) -> None:
        log.error(
            "settle.given_up",
            inputs=len(batch),
            remedy="their leases end by themselves; each costs its input one attempt",
        )
        for lease, _ in batch:
            lease.note_given_up()

    async def _refuse(
        self, lease: Lease, settlement: Settlement, error: Exception, patience: _Patience
    ) -> list[Waiting]:
        """Let an input die of which an outcome came that cannot be recorded."""
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
            lease.note_given_up()
            return []
        refused = settlement._replace(outcome=Refused("BadOutcome", reason))
        return await self._commit([(lease, refused)], patience)


def _tell_put_aside(claim: Claim) -> None:
    log.warning("settle.put_aside", kind=claim.kind, remedy=_ASIDE_REMEDY)


def _tell_caught_up(claim: Claim, aside_seconds: float) -> None:
    log.info("settle.caught_up", kind=claim.kind, aside_seconds=round(aside_seconds, 1))


def _job(waiting: Waiting) -> UUID:
    return waiting[0].claim.job_id


def _is_of_one_job(batch: Sequence[Waiting]) -> bool:
    return len({_job(each) for each in batch}) == 1


def _halves(batch: Sequence[Waiting]) -> tuple[Sequence[Waiting], Sequence[Waiting]]:
    """Part a batch about in the middle: between two jobs, or within the only one."""
    by_job = sorted(batch, key=_job)
    middle = len(by_job) // 2
    if not _is_of_one_job(batch):
        job_id = _job(by_job[middle])
        middle = bisect_left(by_job, job_id, key=_job) or bisect_right(by_job, job_id, key=_job)
    return by_job[:middle], by_job[middle:]


def _spans(batch: Sequence[Waiting]) -> Iterator[Span]:
    """Give the span of each lease of a batch; nothing is looked up where there are none."""
    yield from {id(lease): lease.span for lease, _ in batch}.values()


def _leaves_work(line: Settled) -> bool:
    """Say whether an entry came of it: the input goes on, or its death is to be told."""
    verdict = line.verdict
    return line.accepted and (
        verdict.delay_seconds is not None or verdict.status is InputStatus.DLQ
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
            # One of an entry says it: a cancelled job may have hundreds in hand.
            if lease.refused:
                log.debug("input.refused_late", **about)
            else:
                log.warning("input.refused_late", **about)
        elif verdict.status is InputStatus.DLQ:
            log.error("input.failed", **about)
        else:
            log.warning("input.failed", **about)
