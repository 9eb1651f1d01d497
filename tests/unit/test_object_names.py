"""What may become the key of an object, and how metadata survives being a header."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.object_names import checked_key, decoded, encoded, split_uri, uri_of
from schema.errors import InvalidInput

KEY = "exports/2026/01/10/J20260110_000777/ABC_20240202_CLS.csv"


def test_a_key_of_validated_parts_is_accepted() -> None:
    assert split_uri(uri_of("bucket", checked_key(KEY))) == ("bucket", KEY)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/a",
        "a/",
        "a//b",
        "../a",
        "a/../b",
        "a/.",
        "a b",
        "a\n",
        "ä",
        "a%2e",
        "a\\b",
        "a" * 1025,
    ],
)
def test_a_key_that_is_not_plain_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput):
        checked_key(key)


@pytest.mark.parametrize("uri", ["", "s3://", "s3://b/", "http://bucket/a", "s3://bucket/../a"])
def test_a_uri_that_is_not_ours_is_refused(uri: str) -> None:
    with pytest.raises(InvalidInput):
        split_uri(uri)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=100))
def test_metadata_is_printable_ascii_and_comes_back(value: str) -> None:
    header = encoded({"name": value})["name"]
    assert header.isascii()
    assert header == header.strip()
    assert header.isprintable()
    assert decoded({"name": header}) == {"name": value}


def test_ascii_metadata_is_sent_as_it_is() -> None:
    assert encoded({"correlation-id": "a-b:c/d+e=f@g"}) == {"correlation-id": "a-b:c/d+e=f@g"}


@pytest.mark.parametrize("metadata", [{"Name": "x"}, {"a_b": "x"}, {"": "x"}, {"a": "x" * 2_048}])
def test_metadata_that_no_header_could_hold_is_refused(metadata: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        encoded(metadata)
