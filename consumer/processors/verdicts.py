"""What an exception says of an input. Cancellation is none: it says nothing of the input."""

from __future__ import annotations

from itertools import islice

from pydantic import ValidationError

from schema.errors import Fault, HaulageError, InvalidInput, NotFound, Refusal, Skip
from schema.outcome import Failed, Missing, Outcome, Refused, Skipped, told

_MOST_PROBLEMS = 20


def outcome_of(error: BaseException) -> Outcome:
    """Say what follows from an exception that a processor raised."""
    error = _only_leaf(error)
    message = told(str(error))
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
            return Refused(InvalidInput.__name__, told(_problems(error)))
        case _:
            # Misconfigured too: somebody can still put it right before the attempts run out.
            return Failed(type(error).__name__, message)


def is_expected(error: BaseException) -> bool:
    """Say whether a processor raised this on purpose; what it did not deserves its traceback."""
    return isinstance(_only_leaf(error), HaulageError | ValidationError)


def _only_leaf(error: BaseException) -> BaseException:
    """Unwrap what a task group of the processor's own has wrapped, if it is one error alone."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _problems(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    lines = ("/".join(map(str, problem["loc"])) + ": " + problem["msg"] for problem in found)
    problems = "; ".join(islice(lines, _MOST_PROBLEMS))
    return f"the input no longer fits {error.title}: {problems}"
