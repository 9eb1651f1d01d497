"""Every retry policy, named. What is not here is not retried in place."""

from __future__ import annotations

from typing import Any

import structlog
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_attempt,
    stop_never,
    wait_random_exponential,
)

from schema.errors import Unavailable

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_SERIALIZATION_FAILURES = frozenset({"40001", "40P01"})


def sqlstate(error: BaseException) -> str | None:
    """Give the SQLSTATE of a database error, wherever the driver's wrappers hide it."""
    for layer in (error, getattr(error, "orig", None), error.__cause__):
        code = getattr(layer, "sqlstate", None)
        if isinstance(code, str):
            return code
    return None


def is_serialization_failure(error: BaseException) -> bool:
    """Say whether the transaction lost a race and deserves another run."""
    return sqlstate(error) in _SERIALIZATION_FAILURES


def lost_race() -> AsyncRetrying:
    """Rerun a transaction that deadlocked or failed to serialise."""
    return AsyncRetrying(
        retry=retry_if_exception(is_serialization_failure),
        wait=wait_random_exponential(multiplier=0.01, max=0.5),
        stop=stop_after_attempt(8),
        reraise=True,
    )


def until_available(what: str) -> AsyncRetrying:
    """Wait for a neighbour that is away, however long; log when that begins and as it lasts."""

    def tell(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        log.warning(
            "neighbour.away",
            neighbour=what,
            attempt=state.attempt_number,
            retry_in_seconds=round(state.upcoming_sleep, 2),
            error=str(error),
        )

    return AsyncRetrying(
        retry=retry_if_exception_type(Unavailable),
        wait=wait_random_exponential(multiplier=0.2, max=10),
        stop=stop_never,
        before_sleep=tell,
        reraise=True,
    )


def jittered(attempt: int, *, base_seconds: float, cap_seconds: float) -> float:
    """Give a full-jitter backoff in seconds for loops that keep their own count (from 1)."""
    state: Any = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
    state.attempt_number = max(1, attempt)
    return float(wait_random_exponential(multiplier=base_seconds, max=cap_seconds)(state))
