"""A database to work on by the product's own statements, one at a time and each timed."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from schema.statements.claim import claim_by_id, claim_ready
from schema.statements.relay import find_room, lock_ready, mark_sent, promote_due
from schema.statements.settle import OUTCOME_COLUMNS, settle_inputs
from schema.statements.submit import insert_job
from schema.statements.turns import FIRST_TURN
from tests.benchmarks.jobs import job, noop_bodies

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import Row

    from tests.benchmarks.stage import Place

KIND = "noop"
ENTRIES = 10
_LEASE_SECONDS, _WINDOW = 600.0, 200
_WORKER = "benchmark"


@dataclass(slots=True)
class Ground:
    """One place, its owners, and how many milliseconds each step took so far."""

    place: Place
    owners: Sequence[UUID]
    took_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _turn: Any = FIRST_TURN
    _submitted: int = 0

    async def submit(self, *, inputs: int, chunk_size: int) -> None:
        """Store a job, of one owner after the other."""
        owner_id = self.owners[self._submitted % len(self.owners)]
        self._submitted += 1
        given = job(self.place, KIND, inputs, noop_bodies(inputs), chunk_size=chunk_size)
        head = {**given.head, "owner_id": owner_id}
        statement = insert_job(head, chunk_size=chunk_size, bodies=given.bodies)
        await self._timed("submit", statement)

    async def claim(self, most: int = ENTRIES) -> Sequence[Row[Any]]:
        """Claim entries as a consumer in outbox mode does."""
        statement = claim_ready(_WORKER, _LEASE_SECONDS, kinds=[KIND], most=most, turn=self._turn)
        rows = await self._timed("claim", statement)
        assert len(rows) == most, (len(rows), most)
        self._turn = self._turn.after(rows)
        return rows

    async def relay(self) -> list[int]:
        """Do a round of the relay, but for the sending; give the entries."""
        began = time.perf_counter()
        database = self.place.database
        await database.fetch(promote_due())
        await database.fetch(find_room(window=_WINDOW))
        rows = await database.fetch(
            lock_ready(_WORKER, _LEASE_SECONDS, kind=KIND, most=ENTRIES, turn=self._turn)
        )
        self._turn = self._turn.after(rows)
        ids = [row.id for row in rows]
        await database.fetch(mark_sent(_WORKER, ids))
        self.took_ms["relay"].append((time.perf_counter() - began) * 1000)
        assert len(ids) == ENTRIES, ids
        return ids

    async def claim_by_id(self, entry_ids: Sequence[int]) -> Sequence[Row[Any]]:
        """Claim entries as a consumer in SQS mode does."""
        statement = claim_by_id(_WORKER, _LEASE_SECONDS, entry_ids)
        rows = await self._timed("claim by message", statement)
        assert len(rows) == len(entry_ids), (len(rows), len(entry_ids))
        return rows

    async def settle(self, rows: Sequence[Row[Any]]) -> None:
        """Settle all of what was claimed, as succeeded."""
        outcomes: dict[str, list[Any]] = {name: [None] * len(rows) for name in OUTCOME_COLUMNS}
        ids, epochs = [row.entry_id for row in rows], [row.epoch for row in rows]
        outcomes |= {
            "entry_ids": ids,
            "epochs": epochs,
            "statuses": ["SUCCEEDED"] * len(rows),
            "attempts": [1] * len(rows),
            "elapsed_ms": [0] * len(rows),
            "first_ordinals": [row.ordinals[0] for row in rows],
            "last_ordinals": [row.ordinals[-1] for row in rows],
        }
        settled = await self._timed(
            "settle", settle_inputs(outcomes, held_ids=ids, held_epochs=epochs)
        )
        assert len(settled) == len(rows), (len(settled), len(rows))

    async def _timed(self, step: str, statement: Any) -> Sequence[Row[Any]]:
        began = time.perf_counter()
        rows = await self.place.database.fetch(statement)
        self.took_ms[step].append((time.perf_counter() - began) * 1000)
        return rows
