"""Every retry policy, named. What is not here is not retried in place."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg
import structlog
from sqlalchemy.exc import DBAPIError
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    wait_random_exponential,
)

from infra.patience import first_of
from schema.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Result = TypeVar("Result")

_SERIALIZATION_FAILURES = frozenset({"40001", "40P01"})
_RUNS = 8
_NOT_BEGUN = "cannot switch to state"
# A value, a constraint, a limit, what a trigger raises, a row that cannot be read.
_OF_A_ROW = ("22", "23", "54", "P0", "XX")


def sqlstate(error: BaseException) -> str | None:
    """Give the SQLSTATE of a database error, wherever the driver's wrappers hide it."""
    for layer in (error, getattr(error, "orig", None), error.__cause__):
        code = getattr(layer, "sqlstate", None)
        if isinstance(code, str):
            return code
    return None


def is_lock_timeout(error: BaseException) -> bool:
    """Say whether the database is there, and only a row is in other hands."""
    cause = error.__cause__
    return isinstance(error, Unavailable) and cause is not None and sqlstate(cause) == "55P03"


def is_statement_timeout(error: BaseException) -> bool:
    """Say whether the database is there, and gave up on a statement that took too long."""
    cause = error.__cause__
    return isinstance(error, Unavailable) and cause is not None and sqlstate(cause) == "57014"


def is_too_slow(error: BaseException) -> bool:
    """Say whether a statement took too long, by the server's word or by that of who waited."""
    return is_statement_timeout(error) or (
        isinstance(error, Unavailable) and isinstance(error.__cause__, TimeoutError)
    )


def is_of_a_row(error: BaseException) -> bool:
    """Say whether a row is at fault, or what is to be written: others can still be dealt with."""
    state = sqlstate(error) or ""
    return isinstance(error, TypeError | ValueError | OverflowError) or (
        isinstance(error, DBAPIError)
        and (state.startswith(_OF_A_ROW) or isinstance(error.orig, asyncpg.DataError | TypeError))
    )


def deserves_another_run(error: BaseException) -> bool:
    """Say whether the transaction lost a race, and is not in.

    With another one, with a change of a table, or with the end of a session that was idle: the
    driver has read of that, and finds itself in no state to begin anything.
    """
    cause = getattr(error, "orig", error).__cause__
    return (
        sqlstate(error) in _SERIALIZATION_FAILURES
        or isinstance(cause, asyncpg.InvalidCachedStatementError)
        or (isinstance(cause, asyncpg.InternalClientError) and _NOT_BEGUN in str(cause))
    )


async def through_races(act: Callable[[], Awaitable[Result]]) -> Result:
    """Rerun a transaction that deadlocked, failed to serialise or met a stale prepared statement.

    The driver forgets every prepared statement when it reports a stale one.
    """
    for run in range(1, _RUNS):
        try:
            return await act()
        except Exception as error:
            if not deserves_another_run(error):
                raise
        await asyncio.sleep(jittered(run, base_seconds=0.01, cap_seconds=0.5))
    return await act()


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


def until_database(failures: int, *, cap_seconds: float = 5) -> float:
    """Say how long a loop waits for a database that is away: work waits for its return."""
    return max(0.05, jittered(failures, base_seconds=0.2, cap_seconds=cap_seconds))


def sleep_unless(*events: asyncio.Event) -> Callable[[float], Awaitable[None]]:
    """Give a sleep in seconds that ends early when one of the events is set."""

    async def sleep(seconds: float) -> None:
        loop = asyncio.get_running_loop()
        waits = [loop.create_task(event.wait()) for event in events]
        try:
            await first_of(waits, seconds)
        finally:
            for wait in waits:
                wait.cancel()

    return sleep


def jittered(attempt: int, *, base_seconds: float, cap_seconds: float) -> float:
    """Give a full-jitter backoff in seconds for loops that keep their own count (from 1)."""
    state: Any = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
    state.attempt_number = max(1, attempt)
    return float(wait_random_exponential(multiplier=base_seconds, max=cap_seconds)(state))
