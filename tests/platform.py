"""What tests of the running parts share: submit a job, read where everything stands."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from pydantic import RootModel
from sqlalchemy import Row, text

from dispatcher.doctor import examine
from infra.database import Database
from infra.queue.protocol import Claim, ClaimedInput
from infra.settings import Settings
from schema.ids import uuid7
from schema.kinds import Kind
from schema.outcome import Backoff, Outcome, Succeeded
from schema.statements.doctor import CHECKS
from schema.statements.submit import insert_job

KIND = "probe"
KINDS: Mapping[str, Kind] = {
    KIND: Kind(
        KIND,
        RootModel[Any],
        "tests.platform:unused",
        backoff=Backoff(base_seconds=0.01, cap_seconds=0.05),
    )
}


def settings_for(database_url: str, **changes: Any) -> Settings:
    """Settings in which everything that can wait waits briefly."""
    defaults: dict[str, Any] = {
        "database_url": database_url,
        "consumer_mode": "outbox",
        "database_pool_size": 5,
        "poll_floor_seconds": 0.2,
        "lease_seconds": 5,
        "receive_wait_seconds": 1,
        "receivers": 1,
        "maintenance_interval_seconds": 0.1,
        "drain_seconds": 5,
    }
    return Settings.model_validate(defaults | changes)


@dataclass
class Platform:
    """A database with one owner, and the questions that tests ask of it."""

    database: Database
    owner_id: UUID = field(default_factory=uuid7)

    async def prepare(self) -> None:
        await self.rows(
            "INSERT INTO owner (id, name) VALUES (:id, :name) RETURNING id",
            id=self.owner_id,
            name=f"owner-{self.owner_id.hex[-12:]}",
        )

    async def submit(
        self, inputs: Sequence[Any] | int, *, chunk_size: int = 10, **head: Any
    ) -> UUID:
        bodies = list(range(inputs)) if isinstance(inputs, int) else list(inputs)
        job_id, wake = uuid7(), head.pop("wake", None)
        values: dict[str, Any] = {
            "id": job_id,
            "owner_id": self.owner_id,
            "kind": KIND,
            "priority": 5,
            "max_attempts": 3,
            "fail_fast": False,
            "options": "{}",
            "metadata": "{}",
            "scheduled_for": None,
            "expires_at": None,
            "total": len(bodies),
            "idempotency_key": None,
            "request_digest": None,
            "correlation_id": f"test-{job_id.hex[-12:]}",
            "traceparent": None,
            "tracestate": None,
            "baggage": None,
        }
        await self.database.fetch(
            insert_job(values | head, chunk_size=chunk_size, bodies=json.dumps(bodies), wake=wake)
        )
        return job_id

    async def rows(self, statement: str, **parameters: Any) -> Sequence[Row[Any]]:
        return await self.database.fetch(text(statement).bindparams(**parameters))

    async def job(self, job_id: UUID) -> Row[Any]:
        return (await self.rows("SELECT * FROM job WHERE id = :id", id=job_id))[0]

    async def statuses(self, job_id: UUID) -> Counter[str]:
        found = await self.rows(
            "SELECT state, count(*) AS n FROM input_state WHERE job_id = :id GROUP BY 1", id=job_id
        )
        return Counter({row.state: row.n for row in found})

    async def entries(self, job_id: UUID) -> Sequence[Row[Any]]:
        return await self.rows("SELECT * FROM outbox WHERE job_id = :id ORDER BY id", id=job_id)

    async def until(
        self,
        job_id: UUID,
        *statuses: str,
        timeout_seconds: float = 120,
        pause_seconds: float = 0.005,
    ) -> Row[Any]:
        """Wait until the job has one of the statuses; fail with its state after the timeout."""

        async def reached() -> bool:
            return (await self.job(job_id)).status in statuses

        await eventually(reached, timeout_seconds=timeout_seconds, pause_seconds=pause_seconds)
        return await self.job(job_id)

    async def check_consistency(self) -> None:
        """Assert what must hold at any moment between two commits (DESIGN, invariants)."""
        findings = await examine(
            self.database,
            patience_seconds=0,
            checks=[check for check in CHECKS if check.always],
        )
        assert not findings, [(found.check.name, found.breaches) for found in findings]
        overcharged = await self.rows(_OVERCHARGED_INPUTS)
        assert not overcharged, f"attempts kept that no input was charged for: {overcharged}"

    async def check_all_done(self) -> None:
        """Assert that nothing is left to do: every input final, no order left, none put aside."""
        unfinished = await self.rows(_UNFINISHED_INPUTS)
        assert not unfinished, f"unfinished inputs: {unfinished}"
        left = await self.rows("SELECT id, state, parked_reason FROM outbox")
        assert not left, f"entries left in the outbox: {left}"
        parked = await self.rows("SELECT reason, body FROM parked_message")
        assert not parked, f"parked messages: {parked}"


_OVERCHARGED_INPUTS = """
SELECT i.job_id, i.ordinal, i.attempts, count(*) AS kept, max(a.attempt) AS highest
FROM input i JOIN attempt a ON a.job_id = i.job_id AND a.ordinal = i.ordinal
                           AND a.generation = i.generation
GROUP BY i.job_id, i.ordinal HAVING count(*) > i.attempts OR max(a.attempt) > i.attempts
"""
_UNFINISHED_INPUTS = """
SELECT job_id, ordinal, status, entry_id FROM input WHERE status IN ('PENDING', 'RETRY_WAIT')
"""


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]],
    *,
    timeout_seconds: float = 120,
    pause_seconds: float = 0.005,
) -> None:
    """Ask until the condition holds, with a pause in between that leaves others their turn."""
    async with asyncio.timeout(timeout_seconds):
        while True:
            holds = condition()
            if await holds if isinstance(holds, Awaitable) else holds:
                return
            await asyncio.sleep(pause_seconds)


async def stretch(seconds: float) -> None:
    """Let so much time pass, to count what happens in it; to wait for something: ``eventually``."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()


class Recorder:
    """A runner that keeps what it ran and says of each input what the test wants."""

    def __init__(
        self,
        say: Callable[[Claim, ClaimedInput], Outcome | Awaitable[Outcome]] | None = None,
        *,
        together: int = 1,
    ) -> None:
        self.together = together
        self.ran: list[tuple[UUID, int]] = []
        self.started = asyncio.Event()
        self._say = say

    async def run(self, claim: Claim, inputs: Sequence[ClaimedInput]) -> Sequence[Outcome]:
        self.started.set()
        outcomes: list[Outcome] = []
        for input_ in inputs:
            said = self._say(claim, input_) if self._say else Succeeded()
            outcomes.append(await said if isinstance(said, Awaitable) else said)
            self.ran.append((claim.job_id, input_.ordinal))
        return outcomes


class Gated(Recorder):
    """A runner whose inputs succeed once the gate is open, and wait until then."""

    def __init__(self) -> None:
        super().__init__(self._wait)
        self.gate = asyncio.Event()

    async def _wait(self, _claim: Claim, _input: ClaimedInput) -> Outcome:
        await self.gate.wait()
        return Succeeded()


class Deaf(Gated):
    """A runner that swallows its cancellation until the gate is open."""

    async def _wait(self, claim: Claim, input_: ClaimedInput) -> Outcome:
        while not self.gate.is_set():
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                continue
        return Succeeded()


def seeded(seed: int) -> random.Random:
    return random.Random(seed)
