"""What a processor may say, and what is refused before it meets the outcomes of others."""

from typing import Any

import pytest

from schema.outcome import Artifact, Failed, Lapsed, Missing, Refused, Skipped, Succeeded
from schema.storable import BadOutcome, storable

GOOD = Artifact("k", "s3://b/k", 1, "e")


@pytest.mark.parametrize(
    "said",
    [
        Succeeded(),
        Succeeded({"n": 1, "text": "ä\n\N{GRINNING FACE}"}, GOOD, reused=False),
        Succeeded({}, None, reused=True),
        Succeeded({"note": "\\u0000", "path": "c:\\\\u0000"}),
        Skipped("nothing to do"),
        Missing("no rows"),
        Refused("Bad", "no"),
        Failed("Boom", "x", 5),
    ],
)
def test_what_can_be_stored_passes_unchanged(said: Any) -> None:
    assert storable(said) == said


@pytest.mark.parametrize(
    "said",
    [
        None,
        "done",
        Lapsed("worker"),
        Succeeded({"a": "\0"}),
        Succeeded({"a\0": 1}),
        Succeeded({"a": ["\\\0"]}),
        Succeeded({"a": "\\u0000", "b": {"c": "\\\\\0"}}),
        Succeeded({"a": "\ud800"}),
        Succeeded({"a": float("nan")}),
        Succeeded({"a": object()}),
        Succeeded({"a": 10**5_000}),
        Succeeded({(1, 2): 3}),  # type: ignore[dict-item]
        Succeeded({"a": "x" * 300_000}),
        Succeeded([1]),  # type: ignore[arg-type]
        Succeeded(None),  # type: ignore[arg-type]
        Succeeded({}, GOOD, reused="yes"),  # type: ignore[arg-type]
        Succeeded({}, Artifact("k\0", "u", 1, "e")),
        Succeeded({}, Artifact("k", "u", -1, "e")),
        Succeeded({}, Artifact("k", "u", 2**63, "e")),
        Succeeded({}, "artifact"),  # type: ignore[arg-type]
        Skipped(None),  # type: ignore[arg-type]
        Missing(5),  # type: ignore[arg-type]
        Refused(None, "m"),  # type: ignore[arg-type]
        Failed("Boom", None),  # type: ignore[arg-type]
        Failed("Boom", "x", "5"),  # type: ignore[arg-type]
        Failed("Boom", "x", float("inf")),
    ],
)
def test_what_cannot_be_stored_is_refused_and_says_why(said: Any) -> None:
    with pytest.raises(BadOutcome, match=r".{10}"):
        storable(said)


def test_an_error_class_is_made_printable_and_short() -> None:
    refused = storable(Refused("a\0b" + "c" * 500, "m"))
    assert isinstance(refused, Refused)
    assert refused.error_class.startswith("a\N{REPLACEMENT CHARACTER}b")
    assert len(refused.error_class) == 200
