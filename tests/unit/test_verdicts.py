"""What an exception of a processor says of its input."""

import pytest
from pydantic import ValidationError

from consumer.processors.verdicts import is_expected, outcome_of
from schema.errors import (
    Fault,
    InvalidInput,
    LeaseLost,
    Misconfigured,
    NotFound,
    Refusal,
    Skip,
    Unavailable,
    Unusable,
)
from schema.export import ExportInput
from schema.outcome import Backoff, Failed, Missing, Outcome, Refused, Skipped, decide


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NotFound("no rows"), Missing("no rows")),
        (Refusal("no"), Refused("Refusal", "no")),
        (InvalidInput("bad"), Refused("InvalidInput", "bad")),
        (Skip("done before"), Skipped("done before")),
        (Fault("later", retry_after_seconds=7), Failed("Fault", "later", 7)),
        (Unavailable("away"), Failed("Unavailable", "away")),
        (Unusable("closed"), Failed("Unusable", "closed")),
        (Misconfigured("set X"), Failed("Misconfigured", "set X")),
        (LeaseLost("gone"), Failed("LeaseLost", "gone")),
        (ZeroDivisionError("by zero"), Failed("ZeroDivisionError", "by zero")),
        (TimeoutError(), Failed("TimeoutError", "(no message)")),
        (ExceptionGroup("g", [NotFound("no rows")]), Missing("no rows")),
        (
            ExceptionGroup("g", [Skip("a"), Skip("b")]),
            Failed("ExceptionGroup", "g (2 sub-exceptions)"),
        ),
        (OSError("https://u:p@h/x: a\x00b"), Failed("OSError", "https://***@h/x: a\ufffdb")),
    ],
)
def test_the_outcome_of(error: Exception, outcome: Outcome) -> None:
    assert outcome_of(error) == outcome


@pytest.mark.parametrize(
    "said",
    [
        Failed("E", "no answer of https://app:pa55@host/x?sig=pa55"),
        Refused("E", "password: pa55"),
        Missing("Authorization: Basic pa55"),
        Skipped("x" * 1_980 + " postgres://app:pa55@host/x"),
    ],
)
@pytest.mark.parametrize("attempt", [1, 2])
def test_credentials_are_taken_out_of_what_a_processor_returns(said: Outcome, attempt: int) -> None:
    verdict = decide(said, attempt=attempt, max_attempts=2, backoff=Backoff(), jitter=0.5)
    assert "***" in (verdict.error_message or "")
    assert "pa55" not in (verdict.error_message or "")


def test_a_body_that_no_longer_fits_is_refused_without_repeating_it() -> None:
    with pytest.raises(ValidationError) as raised:
        ExportInput.model_validate_json('{"indexKey":"se cret","effectiveDate":20240202}')
    outcome = outcome_of(raised.value)
    assert isinstance(outcome, Refused)
    assert outcome.error_class == "InvalidInput"
    assert "asofindicator: Field required" in outcome.message
    assert "indexKey: " in outcome.message
    assert "se cret" not in outcome.message


def test_only_what_was_not_raised_on_purpose_deserves_its_traceback() -> None:
    assert is_expected(Fault("x"))
    assert is_expected(ExceptionGroup("g", [Skip("x")]))
    assert not is_expected(KeyError("x"))
    assert not is_expected(ExceptionGroup("g", [Skip("a"), KeyError("b")]))
