import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.fields import read_fields
from api.lifecycle_models import LetterRequest, Nothing, ReprocessRequest
from api.problems import Problem


def refused(body: Any, model: Any = ReprocessRequest) -> dict[str, str]:
    text = body if isinstance(body, str) else json.dumps(body)
    with pytest.raises(Problem) as caught:
        read_fields(text.encode(), model)
    assert caught.value.status == 422
    return {bad.name: bad.detail for bad in caught.value.errors}


def test_an_empty_object_asks_for_the_defaults() -> None:
    asked = read_fields(b" {} ", ReprocessRequest)
    assert (asked.statuses, asked.ordinals, asked.dryRun) == (["DLQ", "NOT_FOUND"], None, False)


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({"statuses": ["SUCCEEDED"]}, {"/statuses/0"}),
        ({"statuses": []}, {"/statuses"}),
        ({"statuses": "DLQ"}, {"/statuses"}),
        ({"ordinals": []}, {"/ordinals"}),
        ({"ordinals": [-1, 2**31, 1.0, "1", None, True]}, {f"/ordinals/{n}" for n in range(6)}),
        ({"ordinals": list(range(10_001))}, {"/ordinals"}),
        ({"dryRun": 1, "surprise": 2}, {"/dryRun", "/surprise"}),
        ('{"dryRun":true,"dryRun":false}', {"/dryRun"}),
        ('{"ordinals":[NaN,9223372036854775808]}', {"/ordinals/0", "/ordinals/1"}),
        ([], {""}),
        ("null", {""}),
    ],
)
def test_what_is_wrong_is_named_at_its_place(body: Any, pointers: set[str]) -> None:
    assert set(refused(body)) == pointers


def test_ten_thousand_ordinals_are_read_however_they_are_laid_out() -> None:
    ordinals = [2**31 - 1 - number for number in range(10_000)]
    for indent in (None, 4):
        body = json.dumps({"ordinals": ordinals}, indent=indent).encode()
        assert read_fields(body, ReprocessRequest).ordinals == ordinals


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"kind": "No Kind"}, "/kind"),
        ({"jobId": "J1_1"}, "/jobId"),
        ({"jobId": "J20260110_000777\n"}, "/jobId"),
        ({"fingerprint": "x"}, "/fingerprint"),
        ({"diedFrom": "2026-01-01T00:00:00"}, "/diedFrom"),
        ({"diedTo": 7}, "/diedTo"),
        ({"owner": "a\u0000b"}, "/owner"),
        ({"errorClass": "Boom "}, "/errorClass"),
    ],
)
def test_a_filter_that_cannot_match_is_refused(body: Any, pointer: str) -> None:
    assert set(refused(body, LetterRequest)) == {pointer}


def test_where_nothing_is_asked_nothing_may_be_given() -> None:
    assert read_fields(b"{}", Nothing) == Nothing()
    assert set(refused({"reason": "x"}, Nothing)) == {"/reason"}


@pytest.mark.parametrize("text", ["", "{", "{} {}", "hello", "{,}"])
def test_a_broken_body_is_a_400(text: str) -> None:
    with pytest.raises(Problem) as caught:
        read_fields(text.encode(), Nothing)
    assert caught.value.status == 400


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from([*ReprocessRequest.model_fields, *LetterRequest.model_fields])
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(documents, st.sampled_from([ReprocessRequest, LetterRequest, Nothing]))
def test_any_body_is_read_or_refused(document: Any, model: Any) -> None:
    try:
        read_fields(json.dumps(document).encode(), model)
    except Problem as problem:
        assert problem.status in {400, 422}
        assert problem.response("c").body
