"""Owners who compete, and how many entries of others come before one's own."""

from uuid import UUID

from infra.database import Database
from infra.queue.protocol import Claim
from schema.statements.claim import claim_ready
from schema.statements.turns import FIRST_TURN
from tests.platform import KIND, Platform


async def owners(database: Database, many: int) -> list[Platform]:
    """Give so many owners on one database."""
    found = [Platform(database) for _ in range(many)]
    for owner in found:
        await owner.prepare()
    return found


class Claimer:
    """Claims as a consumer in outbox mode does, one statement after the other."""

    def __init__(
        self, database: Database, *, most: int = 1, kinds: tuple[str, ...] = (KIND,)
    ) -> None:
        self._database = database
        self._most = most
        self._kinds = kinds
        self._turn = FIRST_TURN

    async def claim(self) -> list[Claim]:
        statement = claim_ready("w", 600, kinds=self._kinds, most=self._most, turn=self._turn)
        rows = await self._database.fetch(statement)
        self._turn = self._turn.after(rows)
        return [Claim.from_row(row) for row in rows]

    async def before(self, job_id: UUID) -> list[UUID]:
        """Claim until an entry of the job comes; give the jobs of those that came before it."""
        passed: list[UUID] = []
        while claims := await self.claim():
            jobs = [claim.job_id for claim in claims]
            if job_id in jobs:
                return passed + jobs[: jobs.index(job_id)]
            passed += jobs
        raise AssertionError("no entry of the job came")
