"""An event loop whose clock moves only when it is told to, and that knows when nothing runs."""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


_MOST_TURNS = 100_000


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Sleeps and timeouts end when ``advance`` has passed them; sockets work as ever."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        self._seconds = 0.0
        super().__init__()
        # Timers are due to the millisecond: less is lost beside the seconds of a year.
        self._clock_resolution = 0.001
        self.set_exception_handler(self._fail)
        self.faults: list[str] = []

    def time(self) -> float:
        return self._seconds

    def restart(self) -> None:
        """Set the clock to zero, once nobody waits for it any more."""
        self._seconds = 0.0

    def advance(self, seconds: float) -> None:
        self._seconds += seconds

    async def idle(self) -> None:
        """Return when every task waits: for a gate, for a timer, or for a step to come."""
        for _ in range(_MOST_TURNS):
            if not self._ready and not self._is_due():
                return
            await asyncio.sleep(0)
        raise AssertionError(f"they never rest: {asyncio.all_tasks(self)}")

    def perform(self, step: Coroutine[Any, Any, Result]) -> Result:
        """Carry out one step, and let what follows from it run until nothing can."""
        result = self.run_until_complete(self._and_idle(step))
        assert not self.faults, self.faults
        return result

    async def _and_idle(self, step: Coroutine[Any, Any, Result]) -> Result:
        result = await step
        await self.idle()
        return result

    def _is_due(self) -> bool:
        return any(
            not timer.cancelled() and timer.when() <= self._seconds for timer in self._scheduled
        )

    def _fail(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.faults.append(f"{context.get('message')}: {context.get('exception')!r}")
