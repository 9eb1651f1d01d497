"""What the executor has in hand: the claims of each kind, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextvars import Context

    from consumer.executor import Runner, Told
    from consumer.lease import Lease


@dataclass(slots=True, eq=False)
class Share:
    """What one claim has in the executor: inputs that wait for a slot, and runs."""

    lease: Lease
    runner: Runner
    told: Told
    context: Context
    lane: Lane
    # Claims are numbered as they come, which is at this time.
    number: int
    came_at: float
    next: int = 0
    running: int = 0
    error: BaseException | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def waiting(self) -> int:
        """Give the number of inputs that have not started."""
        return len(self.lease.claim.inputs) - self.next


@dataclass(slots=True, eq=False)
class Lane:
    """What there is of one kind: claims with inputs that wait, and runs."""

    kind: str
    limit: int
    queue: deque[Share] = field(default_factory=deque)
    running: int = 0
    # Inputs that have not started.
    waiting: int = 0
    last_start_at: float = 0.0
    last_start_inputs: int = 1

    def first(self) -> Share:
        """Give the claim that came first of those with inputs that wait; there is one."""
        while not (share := self.queue[0]).waiting:
            self.queue.popleft()
        return share

    def least_seconds(self, now: float) -> float:
        """Say how long an input takes at least, by those that run."""
        return (now - self.last_start_at) / self.last_start_inputs if self.running else 0.0
