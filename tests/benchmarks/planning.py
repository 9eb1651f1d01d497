"""What planning costs the statements that run most: ``python -m tests.benchmarks.planning``.

Each statement runs in an empty database, where nothing but planning takes time: planned anew each
time, and under a plan that is kept, in turns.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import uvloop

from schema.ids import uuid7
from schema.statements import claim, relay
from schema.statements.bound import FOR_EVER, Bound
from schema.statements.settle import OUTCOME_COLUMNS, settle_inputs
from tests.benchmarks.stage import Stage

if TYPE_CHECKING:
    from infra.database import Database

_RUNS = 300


def _often() -> dict[str, Bound]:
    values = {"statuses": "SUCCEEDED", "entry_ids": 1, "epochs": 1, "attempts": 1}
    values |= {"first_ordinals": 0, "last_ordinals": 9}
    return {
        "claim what is ready": claim.claim_ready("w", 30, kinds=["noop"], most=10),
        "claim by messages": claim.claim_by_id("w", 30, [1, 2], job_ids=[uuid7()], kinds=["noop"]),
        "when is the next ready": claim.next_ready(kinds=["noop"]),
        "extend leases": claim.extend_leases([1], [1], [uuid7()], 30),
        "settle": settle_inputs(
            {name: [values.get(name)] for name in OUTCOME_COLUMNS}, held_ids=[1], held_epochs=[1]
        ),
        "find room in the window": relay.find_room(window=100),
        "lock what is to be sent": relay.lock_ready("t", 30, kind="noop", most=100),
        "mark what was sent": relay.mark_sent("t", [1]),
    }


async def _milliseconds(database: Database, statement: Bound) -> float:
    began = time.perf_counter()
    await database.fetch(statement)
    return (time.perf_counter() - began) * 1_000


async def measure() -> str:
    """Run them all; give a table."""
    lines = ["| | planned anew, ms | plan kept, ms |", "|---|---:|---:|"]
    async with Stage() as stage:
        place = await stage.place("planning", mode="outbox")
        for name, statement in _often().items():
            anew, kept = (
                replace(statement, plan_seconds=0.0),
                replace(statement, plan_seconds=FOR_EVER),
            )
            took: dict[float, list[float]] = {}
            for run in range(_RUNS):
                # Changing over is not what is measured: each goes several times in a row.
                sort = anew if run // 10 % 2 else kept
                milliseconds = await _milliseconds(place.database, sort)
                if run % 10:
                    took.setdefault(sort.plan_seconds, []).append(milliseconds)
            both = [f"{statistics.median(took[seconds]):.2f}" for seconds in (0.0, FOR_EVER)]
            lines.append(f"| {name} | {' | '.join(both)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the command."""
    sys.stdout.write(uvloop.run(measure()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
