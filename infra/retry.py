"""Every retry policy, named. What is not here is not retried in place."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import structlog
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from schema.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_SERIALIZATION_FAILURES = frozenset({"40001", "40P01"})


def sqlstate(error: BaseException) -> str | None:
    """Give the SQLSTATE of a database error, wherever the driver's wrappers hide it."""
    for layer in (error, getattr(error, "orig", None), error.__cause__):
        code = getattr(layer, "sqlstate", None)
        if isinstance(code, str):
            return code
    return None


def deserves_another_run(error: BaseException) -> bool:
    """Say whether the transaction lost a race: with another one, or with a change of a table."""
    return sqlstate(error) in _SERIALIZATION_FAILURES or isinstance(
        getattr(error, "orig", error).__cause__, asyncpg.InvalidCachedStatementError
    )


def lost_race() -> AsyncRetrying:
    """Rerun a transaction that deadlocked, failed to serialise or met a stale prepared statement.

    The driver forgets every prepared statement when it reports a stale one.
    """
    return AsyncRetrying(
        retry=retry_if_exception(deserves_another_run),
        wait=wait_random_exponential(multiplier=0.01, max=0.5),
        stop=stop_after_attempt(8),
        reraise=True,
    )


async def wait_until_available(
    what: str, check: Callable[[], Awaitable[object]], stop: asyncio.Event
) -> bool:
    """Wait until ``check`` stops raising ``Unavailable``; false when ``stop`` came first."""

    def tell(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        log.warning(
            "neighbour.away",
            neighbour=what,
            attempt=state.attempt_number,
            retry_in_seconds=round(state.upcoming_sleep, 2),
            error=str(error),
        )

    retrying = AsyncRetrying(
        retry=retry_if_exception_type(Unavailable),
        wait=wait_random_exponential(multiplier=0.2, max=10),
        stop=lambda _: stop.is_set(),
        sleep=sleep_unless(stop),
        before_sleep=tell,
        reraise=True,
    )
    try:
        async for attempt in retrying:
            with attempt:
                await check()
    except Unavailable:
        return False
    return True


def sleep_unless(*events: asyncio.Event) -> Callable[[float], Awaitable[None]]:
    """Give a sleep in seconds that ends early when one of the events is set."""

    async def sleep(seconds: float) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    return sleep


def jittered(attempt: int, *, base_seconds: float, cap_seconds: float) -> float:
    """Give a full-jitter backoff in seconds for loops that keep their own count (from 1)."""
    state: Any = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
    state.attempt_number = max(1, attempt)
    return float(wait_random_exponential(multiplier=base_seconds, max=cap_seconds)(state))
