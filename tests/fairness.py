"""Owners who compete, and how many entries of others come before one's own."""

import asyncio
from uuid import UUID

from infra.database import Database
from infra.queue.outbox import OutboxQueue
from infra.queue.protocol import Claim
from infra.wakeup import Listener
from tests.platform import KIND, Platform, settings_for


async def owners(database: Database, many: int) -> list[Platform]:
    """Give so many owners on one database."""
    found = [Platform(database) for _ in range(many)]
    for owner in found:
        await owner.prepare()
    return found


class Claimer:
    """Claims as a consumer in outbox mode does, one claim after the other, by its own clock."""

    def __init__(
        self, database: Database, *, most: int = 1, kinds: tuple[str, ...] = (KIND,)
    ) -> None:
        self._most = most
        self._seconds = 0.0
        self._queue = OutboxQueue(
            database,
            Listener(settings_for("postgresql://127.0.0.1:1/nobody"), name="nobody"),
            worker="w",
            kinds=kinds,
            lease_seconds=600,
            poll_floor_seconds=0.01,
            clock=lambda: self._seconds,
        )

    async def claim(self) -> list[Claim]:
        return list(await self._queue.claim(self._most, asyncio.Event()))

    def let_pass(self, seconds: float) -> None:
        """Have its clock go on by so much."""
        self._seconds += seconds

    async def before(self, job_id: UUID) -> list[UUID]:
        """Claim until an entry of the job comes; give the jobs of those that came before it."""
        passed: list[UUID] = []
        while claims := await self.claim():
            jobs = [claim.job_id for claim in claims]
            if job_id in jobs:
                return passed + jobs[: jobs.index(job_id)]
            passed += jobs
        raise AssertionError("no entry of the job came")
