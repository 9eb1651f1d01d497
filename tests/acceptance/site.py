"""Where an acceptance test works: one database, one mode of delivery, processes on both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

from sqlalchemy import Row

from localstack.init import resources
from localstack.init.resources import Access
from tests.acceptance.fleet import PATIENCE_SECONDS, Fleet, Member
from tests.acceptance.ledger import LEDGER, Ledger
from tests.acceptance.witness import Witness
from tests.platform import Platform, eventually


@dataclass(frozen=True, slots=True)
class SqsQueueInside:
    """A queue as whoever is not a consumer sees it."""

    client: Any
    url: str

    @classmethod
    def at(cls, access: Access, url: str) -> Self:
        return cls(resources.client("sqs", access), url)

    def peek(self) -> list[dict[str, Any]]:
        """Look at messages without taking them."""
        found = self.client.receive_message(
            QueueUrl=self.url,
            VisibilityTimeout=0,
            WaitTimeSeconds=1,
            MaxNumberOfMessages=10,
            MessageAttributeNames=["All"],
        )
        return list(found.get("Messages", ()))

    def messages(self) -> int:
        """Count what is in it: waiting, or in somebody's hands."""
        names = [f"ApproximateNumberOfMessages{which}" for which in ("", "NotVisible", "Delayed")]
        found = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        return sum(int(found["Attributes"][name]) for name in names)


@dataclass(frozen=True, slots=True)
class Site:
    mode: str
    platform: Platform
    witness: Witness
    fleet: Fleet
    ledger: Ledger
    queue: SqsQueueInside | None

    async def start(self, *, consumers: int, dispatchers: int) -> list[Member]:
        """Start processes, the consumers first, and wait until all are ready."""
        members = [self.fleet.start("consumer") for _ in range(consumers)]
        members += [self.fleet.start("dispatcher") for _ in range(dispatchers)]
        await self.fleet.ready(*members)
        return members

    async def submit(self, bodies: Sequence[Any], *, chunk_size: int = 10, **head: Any) -> UUID:
        """Store a ledger job and wake whoever sleeps, as the API does."""
        head = {"kind": LEDGER.name, "max_attempts": LEDGER.max_attempts} | head
        job_id = await self.platform.submit(bodies, chunk_size=chunk_size, **head)
        await self.platform.rows("SELECT pg_notify('haulage_work', '')")
        return job_id

    async def completed(
        self, job_id: UUID, *, timeout_seconds: float = PATIENCE_SECONDS
    ) -> Row[Any]:
        """Wait for the end of a job, then prove what must be true of it and of everything."""
        job = await self.platform.until(
            job_id, "COMPLETED", "FAILED", timeout_seconds=timeout_seconds, pause_seconds=0.05
        )
        await self.check(job_id)
        return job

    async def check(self, job_id: UUID) -> None:
        """Prove that a ledger job is whole: done, and each outcome accepted exactly once."""
        await self.platform.check_consistency()
        await self.platform.check_all_done()
        job = await self.platform.job(job_id)
        assert (job.status, job.succeeded) == ("COMPLETED", job.total)
        ended = await self.witness.ended(job_id)
        assert ended == dict.fromkeys(range(job.total), 1), "each input ends exactly once"
        accepted = await self.witness.accepted_runs(job_id)
        done = {(mark.ordinal, mark.run) for mark in self.ledger.marks("ended")}
        assert set(accepted.items()) <= done, "each outcome is that of a run that was"
        if self.queue is not None:
            await eventually(self._queue_is_empty, timeout_seconds=PATIENCE_SECONDS)

    async def _queue_is_empty(self) -> bool:
        assert self.queue is not None
        return self.queue.messages() == 0
