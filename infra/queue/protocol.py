"""The queue protocol: how a consumer comes by claims, whatever delivers them.

Both implementations keep the same promises; ``tests/integration/test_queue_conformance.py``
holds them to it. A claim is durable in Postgres before ``claim`` returns it. Delivery is only a
hint: losing one costs time (the reaper sends again), repeating one changes nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from infra.queue.limits import BATCH_LIMIT
from schema.message import Trace

if TYPE_CHECKING:
    import asyncio
    import datetime as dt
    from collections.abc import Collection, Sequence
    from collections.abc import Set as AbstractSet
    from uuid import UUID

    from sqlalchemy import Row

    from infra.queue.claiming import Claiming

# As many deliveries are worth a call to acknowledge them: over SQS one call takes no more.
FULL_BATCH = BATCH_LIMIT


# A tuple: one is made for every input, and a frozen dataclass costs several times as much.
class ClaimedInput(NamedTuple):
    """An unfinished input of a claim: its JSON text, and the attempts already charged to it."""

    ordinal: int
    body: str
    attempts: int
    generation: int


@dataclass(frozen=True, slots=True)
class Claim:
    """The lease of one outbox entry, held under ``epoch``, with its unfinished inputs."""

    entry_id: int
    epoch: int
    job_id: UUID
    job_key: str
    kind: str
    owner_id: UUID
    request_date: dt.date
    options: str
    max_attempts: int
    waited_ms: float
    worker: str
    trace: Trace
    inputs: tuple[ClaimedInput, ...]
    # When it was asked for, by ``time.monotonic``: its lease began no sooner.
    asked_at: float = field(default_factory=time.monotonic)
    # The traceparent of what had this work done again: an attempt, a repair.
    origin: str | None = None
    # How much of ``waited_ms`` its message was under way; none in outbox mode.
    queued_ms: float | None = None
    # How long ago the job was due to begin, whatever came in between.
    due_ms: float = 0.0

    def continued(self, trace: Trace) -> Claim:
        """Give the claim for those that carry it on, within a span of their own."""
        return self if trace is self.trace else replace(self, trace=trace)

    @classmethod
    def from_row(cls, row: Row[Any], asked_at: float | None = None) -> Claim:
        """Build a claim from a row of the statements in ``schema.statements.claim``.

        ``asked_at`` says when, by ``time.monotonic``, if that was not just now.
        """
        return cls(
            entry_id=row.entry_id,
            epoch=row.epoch,
            job_id=row.job_id,
            job_key=row.job_key,
            kind=row.kind,
            owner_id=row.owner_id,
            request_date=row.request_date,
            options=row.options,
            max_attempts=row.max_attempts,
            waited_ms=float(row.waited_ms),
            worker=row.worker,
            trace=Trace(row.correlation_id, row.traceparent, row.tracestate, row.baggage),
            inputs=tuple(
                map(
                    ClaimedInput,
                    row.ordinals or (),
                    row.bodies or (),
                    row.attempts or (),
                    row.generations or (),
                )
            ),
            asked_at=time.monotonic() if asked_at is None else asked_at,
            origin=row.origin,
            queued_ms=None if row.queued_ms is None else float(row.queued_ms),
            due_ms=float(row.due_ms),
        )


@dataclass(frozen=True, slots=True)
class Unwanted:
    """What a consumer leaves to others for now: views, looked at anew whenever it claims."""

    kinds: AbstractSet[str] = frozenset()
    jobs: Collection[UUID] = ()


NOTHING = Unwanted()


class Queue(Protocol):
    """Delivers claims to one consumer process."""

    claiming: Claiming

    async def claim(
        self, most: int, stop: asyncio.Event, unwanted: Unwanted = NOTHING
    ) -> Sequence[Claim]:
        """Wait for work and claim up to ``most`` entries; nothing came: an empty sequence.

        Returns soon after ``stop`` is set, with whatever had already been delivered. Raises
        ``Unavailable`` when the queue or the database is away.
        """
        ...

    async def claim_rest(
        self, stop: asyncio.Event, unwanted: Unwanted = NOTHING
    ) -> Sequence[Claim]:
        """Claim what the last claim left beside, without waiting; nothing: there is no more of it.

        To be called, until it gives nothing, when what was claimed before has begun: there is room
        for it, and it would wait for a lease where nobody looked.
        """
        ...

    async def extend(self, claims: Sequence[Claim], lease_seconds: float) -> None:
        """Keep deliveries of held claims from being repeated for another lease."""
        ...

    async def acknowledge(self, claims: Sequence[Claim]) -> None:
        """Forget deliveries whose outcome, or whose release, is committed.

        How many such calls wait for their answers at once is for the caller to bound.
        """
        ...

    def abandon(self, claim: Claim) -> None:
        """Forget a claim whose lease was lost or left to lapse; its delivery may come again."""
        ...

    async def ping(self) -> None:
        """Return when the queue answers; raise ``Unavailable`` when it does not."""
        ...
