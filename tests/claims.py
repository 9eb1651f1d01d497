"""Claims as a queue would hand them over, for tests of what runs them."""

import asyncio
import datetime as dt
import json
from typing import Any
from uuid import UUID

from infra.queue.protocol import Claim, ClaimedInput
from schema.ids import uuid7
from schema.message import Trace


def claim_of(
    kind: str, *bodies: Any, options: str = "{}", owner_id: UUID | None = None, **changes: Any
) -> Claim:
    """Give a claim of inputs with these bodies, the first attempt of each."""
    values: dict[str, Any] = {
        "entry_id": 1,
        "epoch": 1,
        "job_id": uuid7(),
        "job_key": "J20260110_000777",
        "kind": kind,
        "owner_id": owner_id or uuid7(),
        "request_date": dt.date(2026, 1, 10),
        "options": options,
        "max_attempts": 3,
        "waited_ms": 0.0,
        "worker": "worker",
        "trace": Trace("corr-1"),
        "inputs": tuple(
            ClaimedInput(ordinal, json.dumps(body), 0, 0) for ordinal, body in enumerate(bodies)
        ),
    }
    return Claim(**(values | changes))


async def turns() -> None:
    """Let the loop turn until what was ready has run."""
    for _ in range(10):
        await asyncio.sleep(0)
