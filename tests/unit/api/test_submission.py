import datetime as dt
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.inputs import Limits
from api.problems import MOST_LISTED, Problem
from api.submission import BadSubmission
from schema.export import EXPORT
from schema.kinds import JobInput, Kind
from tests.unit.api.readings import Read, read_whole


class Note(JobInput):
    text: str


KINDS = {"export": EXPORT, "note": Kind("note", Note, "unused:unused")}
LIMITS = Limits(inputs=1_000, input_bytes=1_024, stream_inputs=2_000)
ABC = {"indexKey": "ABC", "effectiveDate": 20240202, "asofindicator": "CLS"}


def read(document: Any, limits: Limits = LIMITS) -> Read:
    text = document if isinstance(document, str) else json.dumps(document)
    return read_whole(text, KINDS, limits, by_lines=False)


def refused(document: Any, limits: Limits = LIMITS) -> dict[str, str]:
    with pytest.raises(Problem) as caught:
        read(document, limits)
    assert caught.value.status == 422
    return {bad.name: bad.detail for bad in caught.value.errors}


def test_the_contracts_request_is_read() -> None:
    found = read({"inputs": [ABC]})
    assert found.submission.kind is EXPORT
    assert [json.loads(body) for body in found.texts] == [ABC]
    assert found.submission.fields.priority == 5


@pytest.mark.parametrize("first", [True, False])
def test_the_kind_may_stand_before_or_behind_the_inputs(first: bool) -> None:
    parts = ['"kind":"note"', '"inputs":[{"text":"a"},{"text":"b"}]']
    text = "{" + ",".join(parts if first else reversed(parts)) + "}"
    found = read(text)
    assert found.submission.kind.name == "note"
    assert found.texts == ['{"text":"a"}', '{"text":"b"}']


@pytest.mark.parametrize("kind", ["note", "export"])
def test_however_many_inputs_are_wrong_as_the_default_kind_they_are_judged_as_their_own(
    kind: str,
) -> None:
    limits = Limits(inputs=2_000, input_bytes=1_024, stream_inputs=1)
    document = {"inputs": [{"text": str(number)} for number in range(1_500)], "kind": kind}
    if kind == "note":
        assert len(read(document, limits).texts) == 1_500
    else:
        assert "/inputs/0/text" in refused(document, limits)


def test_all_bad_fields_are_named_at_once() -> None:
    bad = refused(
        {
            "inputs": [
                ABC,
                {**ABC, "effectiveDate": 20240230},
                {**ABC, "indexKey": "../x", "y": 1},
            ],
            "priority": 10,
            "surprise": 1,
            "policy": {"maxAttempts": 0, "toleratedFailures": -1, "toleratedFailureShare": 1.5},
            "options": {"reuse": {"days": -1}},
            "scheduledFor": "2026-01-01T00:00:00",
            "metadata": [],
        }
    )
    assert set(bad) == {
        "/inputs/1/effectiveDate",
        "/inputs/2/indexKey",
        "/inputs/2/y",
        "/priority",
        "/surprise",
        "/policy/maxAttempts",
        "/policy/toleratedFailures",
        "/policy/toleratedFailureShare",
        "/options/reuse/days",
        "/scheduledFor",
        "/metadata",
    }
    assert "20240230" in bad["/inputs/1/effectiveDate"]


def test_an_unknown_field_is_called_that_and_of_what_it_is_none() -> None:
    bad = refused(
        {
            "inputs": [{**ABC, "y": 1}],
            "surprise": 1,
            "policy": {"retries": 3},
            "options": {"reuse": {"hours": 1}, "speed": 9},
        }
    )
    assert bad == {
        "/inputs/0/y": "is not a field of an input of kind export",
        "/surprise": "is not a field of a job",
        "/policy/retries": "is not a field of policy",
        "/options/reuse/hours": "is not a field of reuse",
        "/options/speed": "is not a field of the options of kind export",
    }


@pytest.mark.parametrize("inputs", [[ABC], [1, 2]])
def test_an_unknown_kind_is_no_complaint_about_the_inputs(inputs: list[Any]) -> None:
    assert set(refused({"kind": "none", "inputs": inputs})) == {"/kind"}


def test_no_inputs_at_all_are_named_beside_what_else_is_wrong() -> None:
    assert set(refused({"inputs": [], "priority": 10})) == {"/inputs", "/priority"}


def test_sound_times_of_a_bad_job_are_kept_for_the_database_to_judge() -> None:
    with pytest.raises(BadSubmission) as caught:
        read({"inputs": [], "scheduledFor": "2020-01-01T00:00:00Z", "expiresAt": "soon"})
    assert caught.value.times == (dt.datetime(2020, 1, 1, tzinfo=dt.UTC), None)


@pytest.mark.parametrize(
    ("policy", "total", "tolerated"),
    [
        ({}, 100, 0),
        ({"toleratedFailures": 7}, 3, 7),
        ({"toleratedFailureShare": 0.1}, 9, 0),
        ({"toleratedFailureShare": 0.1}, 10, 1),
        ({"toleratedFailureShare": 0.29}, 100, 29),
        ({"toleratedFailureShare": 1e-7}, 10_000_000, 1),
        ({"toleratedFailureShare": 1}, 100_000, 100_000),
        ({"toleratedFailureShare": 0}, 100_000, 0),
    ],
)
def test_the_share_of_tolerated_failures_is_rounded_down_as_it_is_written(
    policy: dict[str, Any], total: int, tolerated: int
) -> None:
    found = read({"inputs": [ABC], "policy": {"failFast": True, **policy}})
    assert found.submission.fields.policy.tolerated(total) == tolerated


def test_a_number_and_a_share_of_tolerated_failures_exclude_each_other() -> None:
    policy = {"toleratedFailures": 0, "toleratedFailureShare": 0.0}
    assert set(refused({"inputs": [ABC], "policy": policy})) == {"/policy/toleratedFailureShare"}


def test_conflicts_are_named_beside_what_else_is_wrong() -> None:
    bad = refused(
        {
            "inputs": [ABC],
            "priority": 10,
            "policy": {"toleratedFailures": 0, "toleratedFailureShare": 0.0, "maxAttempts": 0},
            "scheduledFor": "2095-01-02T00:00:00Z",
            "expiresAt": "2095-01-01T00:00:00Z",
        }
    )
    assert set(bad) == {
        "/priority", "/policy/maxAttempts", "/policy/toleratedFailureShare", "/expiresAt",
    }  # fmt: skip


def test_an_input_that_cannot_be_stored_has_its_other_faults_named_too() -> None:
    bad = refused(
        '{"inputs":[{"indexKey":"a\\u0000","effectiveDate":20240230,"asofindicator":"C"}]}'
    )
    assert set(bad) == {"/inputs/0/indexKey", "/inputs/0/effectiveDate"}


def test_more_faults_than_fit_are_counted() -> None:
    with pytest.raises(Problem) as caught:
        read({"inputs": [{**ABC, "effectiveDate": number} for number in range(250)]})
    assert len(caught.value.errors) == MOST_LISTED
    assert caught.value.error_count == 250
    assert "150 more" in caught.value.detail


def test_reading_ends_after_a_thousand_faults() -> None:
    heavy: dict[str, Any] = {"text": [[]] * 300}
    with pytest.raises(Problem) as caught:
        read({"kind": "export", "inputs": [heavy] * 900})
    assert 1_000 <= caught.value.error_count < 1_010
    assert caught.value.detail.startswith("at least")


def test_reading_ends_after_a_thousand_more_where_the_kind_is_yet_to_come() -> None:
    heavy: dict[str, Any] = {"text": [[]] * 400}
    limits = Limits(inputs=9_000, input_bytes=1_024, stream_inputs=1)
    with pytest.raises(Problem) as caught:
        read({"inputs": [heavy] * 5_000, "kind": "note"}, limits)
    assert 2_000 <= caught.value.error_count < 2_010


def test_the_same_input_twice_is_refused_with_both_ordinals() -> None:
    twin = dict(reversed(ABC.items()))
    bad = refused({"inputs": [ABC, {**ABC, "indexKey": "B"}, twin]})
    assert bad == {"/inputs/2": "inputs 0 and 2 are the same"}


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({}, "/inputs"),
        ({"inputs": []}, "/inputs"),
        ({"inputs": None}, "/inputs"),
        ({"inputs": {}}, "/inputs"),
        ({"inputs": [None]}, "/inputs/0"),
        ({"inputs": [ABC], "kind": "none"}, "/kind"),
        ({"inputs": [ABC], "kind": None}, "/kind"),
        ({"inputs": [ABC], "kind": 7}, "/kind"),
        ({"inputs": [ABC], "options": None}, "/options"),
        ({"inputs": [ABC], "metadata": {"a": "x" * 20_000}}, "/metadata"),
        ({"inputs": [ABC], "metadata": {"a": [[[[[[[[1]]]]]]]]}}, "/metadata/a/0/0/0/0/0/0/0"),
        ({"inputs": [{**ABC, "indexKey": "x" * 2_000}]}, "/inputs/0"),
        ({"inputs": [ABC], "expiresAt": "9999-12-31T23:59:59-12:00"}, "/expiresAt"),
        ({"inputs": [ABC], "expiresAt": "2026-02-30T00:00:00Z"}, "/expiresAt"),
        ({"inputs": [ABC], "expiresAt": 1_900_000_000}, "/expiresAt"),
        (
            {
                "inputs": [ABC],
                "scheduledFor": "2096-01-02T00:00:00Z",
                "expiresAt": "2096-01-01T00:00:00Z",
            },
            "/expiresAt",
        ),
        ([], ""),
        ("7", ""),
        ("null", ""),
    ],
)
def test_what_is_not_a_job_is_refused_at_its_place(document: Any, pointer: str) -> None:
    assert pointer in refused(document)


def test_names_given_twice_are_refused_at_the_top_too() -> None:
    text = f'{{"inputs":[{json.dumps(ABC)}],"priority":1,"priority":2}}'
    assert refused(text) == {"/priority": "is given twice"}


def test_too_many_inputs_are_refused() -> None:
    inputs = [{**ABC, "indexKey": f"K{number}"} for number in range(6)]
    assert "/inputs" in refused(
        {"inputs": inputs}, Limits(inputs=5, input_bytes=1_024, stream_inputs=5)
    )


@pytest.mark.parametrize("text", ['{"inputs":[', '{"inputs":[]}x', "{,}", '{"a" 1}', "{1:2}"])
def test_a_broken_body_is_a_400(text: str) -> None:
    with pytest.raises(Problem) as caught:
        read(text)
    assert caught.value.status == 400


@given(st.permutations(list(ABC.items())), st.sampled_from([None, 1, 4]))
def test_the_digest_knows_what_is_asked_not_how_it_is_written(
    items: list[tuple[str, Any]], indent: int | None
) -> None:
    asked = read({"inputs": [ABC], "metadata": {"a": 1, "b": 2}}).digest
    written = json.dumps({"metadata": {"b": 2, "a": 1}, "inputs": [dict(items)]}, indent=indent)
    assert read(written).digest == asked
    assert read({"inputs": [ABC], "metadata": {"a": 1, "b": 3}}).digest != asked


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=12,
    )
)
def test_any_document_is_read_or_refused(document: Any) -> None:
    for body in (document, {"inputs": document}, {"inputs": [ABC], "metadata": document}):
        try:
            found = read(body)
        except Problem as problem:
            assert problem.status in {400, 422}
            assert problem.response("c").body
        else:
            assert found.texts
