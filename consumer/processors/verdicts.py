"""What an exception says of an input, and the one place where processors are called.

Cancellation and a lost lease pass through: neither says anything of the input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from pydantic import ValidationError

from infra.telemetry import redact
from schema.errors import (
    Fault,
    HaulageError,
    InvalidInput,
    LeaseLost,
    NotFound,
    Refusal,
    Skip,
)
from schema.outcome import (
    Failed,
    Missing,
    Outcome,
    Refused,
    Skipped,
    Succeeded,
    clean,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumer.processors.protocol import BatchProcessor, Processor, Work

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_OUTCOMES = (Succeeded, Skipped, Missing, Refused, Failed)


async def process_one(processor: Processor, work: Work) -> Outcome:
    """Run one input; give what came of it, whatever the processor raises or returns."""
    try:
        return _checked(await processor.process(work))
    except LeaseLost:
        raise
    except Exception as error:  # noqa: BLE001 - the one place that decides what an error means
        return _told(error)


async def process_together(processor: BatchProcessor, works: Sequence[Work]) -> list[Outcome]:
    """Run many inputs of one job; give what came of each, in order."""
    try:
        outcomes = [_checked(outcome) for outcome in await processor.process_many(works)]
        if len(outcomes) != len(works):
            reason = f"process_many gave {len(outcomes)} outcomes for {len(works)} inputs"
            raise TypeError(reason)
    except LeaseLost:
        raise
    except Exception as error:  # noqa: BLE001 - the one place that decides what an error means
        return [_told(error)] * len(works)
    return outcomes


def outcome_of(error: Exception) -> Outcome:
    """Say what follows from an exception that a processor raised."""
    error = _only_leaf(error)
    message = clean(redact(str(error)))
    match error:
        case NotFound():
            return Missing(message)
        case Refusal():
            return Refused(type(error).__name__, message)
        case Skip():
            return Skipped(message)
        case Fault():
            return Failed(type(error).__name__, message, error.retry_after_seconds)
        case ValidationError():
            # Its own text repeats the values, which may be secret or large.
            return Refused(InvalidInput.__name__, clean(_problems(error)))
        case _:
            # Misconfigured too: somebody can still put it right before the attempts run out.
            return Failed(type(error).__name__, message)


def _told(error: Exception) -> Outcome:
    expected = isinstance(_only_leaf(error), HaulageError | ValidationError)
    if not expected:
        log.error("processor.failed", error_class=type(error).__name__, exc_info=error)
    return outcome_of(error)


def _checked(outcome: object) -> Outcome:
    if not isinstance(outcome, _OUTCOMES):
        reason = f"a processor returned {type(outcome).__name__}, which is no outcome"
        raise TypeError(reason)
    return outcome


def _only_leaf(error: Exception) -> Exception:
    """Unwrap what a task group of the processor's own has wrapped, if it is one error alone."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _problems(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    lines = ("/".join(map(str, problem["loc"])) + ": " + problem["msg"] for problem in problems)
    return f"the input no longer fits {error.title}: {'; '.join(lines)}"
