import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.problems import BadFields, Problem
from api.strict_json import WINDOW_BYTES, Source

DEPTH = 8
LIMIT = 4_096


def read(text: str | bytes, *, limit: int = LIMIT) -> tuple[Any, list[tuple[str, str]]]:
    bad = BadFields()
    body = text.encode() if isinstance(text, str) else text
    source = Source(body)
    value, _ = source.value("/x", bad, limit=limit, depth=DEPTH)
    assert source.peek() == ""
    return value, [(each.name, each.detail) for each in bad.listed]


storable = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | storable,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(storable, inner, max_size=4),
    max_leaves=8,
)


@given(json_values, st.booleans())
def test_what_can_be_stored_is_read_as_json_reads_it(value: Any, escaped: bool) -> None:
    text = json.dumps(value, ensure_ascii=escaped)
    bad = BadFields()
    read_value, raw = Source(text.encode()).value("", bad, limit=10_000, depth=100)
    assert (read_value, raw, bad.count) == (value, text, 0)


@given(st.binary(max_size=60))
@settings(max_examples=500)
def test_any_bytes_are_read_or_refused_as_a_problem(body: bytes) -> None:
    bad = BadFields()
    try:
        value, _ = Source(body).value("", bad, limit=LIMIT, depth=DEPTH)
    except Problem as problem:
        assert problem.status in {400, 422}
    else:
        assert bad.count or json.dumps(value, allow_nan=False)


@given(st.text(alphabet='{}[]",:\\u0dD8 1eE+-.NaInfity', max_size=40))
@settings(max_examples=1_000)
def test_any_text_is_read_or_refused_and_what_is_read_is_storable(text: str) -> None:
    bad = BadFields()
    try:
        value, _ = Source(text.encode()).value("", bad, limit=LIMIT, depth=DEPTH)
    except Problem as problem:
        assert problem.status in {400, 422}
        return
    if not bad.count:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8")
        assert "\\u0000" not in json.dumps(value)


@pytest.mark.parametrize(
    ("text", "pointer", "detail"),
    [
        ('{"a":NaN}', "/x/a", "NaN"),
        ("[1,-Infinity]", "/x/1", "-Infinity"),
        ('{"a":1e400}', "/x/a", "too large"),
        ('{"a":9223372036854775808}', "/x/a", "64 bits"),
        ('{"a":-9223372036854775809}', "/x/a", "64 bits"),
        ('{"a":%s}' % ("9" * 3_000), "/x/a", "64 bits"),
        ('"a\\u0000b"', "/x", "NUL"),
        ('{"a\\u0000":1}', "/x/a\0", "NUL"),
        ('{"a":"\\ud800"}', "/x/a", "surrogate"),
        ('{"\\udc00":1}', "/x/\udc00", "surrogate"),
        ('{"a":1,"b":2,"a":1}', "/x/a", "twice"),
        ('{"o":{"a/b":1,"a/b":1}}', "/x/o/a~1b", "twice"),
        ("[" * 9 + "]" * 9, "/x" + "/0" * 8, "nested"),
    ],
)
def test_what_postgres_cannot_keep_is_refused_at_its_place(
    text: str, pointer: str, detail: str
) -> None:
    _, bad = read(text)
    assert [place for place, _ in bad] == [pointer] or pointer == "/x"
    assert detail in bad[0][1]


def test_a_surrogate_pair_is_a_character() -> None:
    assert read('"\\ud83d\\ude00"') == ("\N{GRINNING FACE}", [])


@pytest.mark.parametrize("number", ["9223372036854775807", "-9223372036854775808", "1e308"])
def test_the_largest_numbers_pass(number: str) -> None:
    value, bad = read(number)
    assert not bad
    assert math.isclose(value, float(number))


@pytest.mark.parametrize("text", ["{", '{"a"', "tru", "'a'", "", '"a', "[1,]", b"\xff", "﻿1"])
def test_what_is_not_json_is_a_400(text: str | bytes) -> None:
    with pytest.raises(Problem) as caught:
        Source(text.encode() if isinstance(text, str) else text).value(
            "", BadFields(), limit=LIMIT, depth=DEPTH
        )
    assert caught.value.status == 400


def test_a_thousand_brackets_do_not_end_the_process() -> None:
    with pytest.raises(Problem) as caught:
        read("[" * 4_000)
    assert caught.value.status in {400, 422}


@pytest.mark.parametrize("opening", ['"', "[", "1", '{"a":'])
def test_a_value_beyond_its_limit_ends_the_reading(opening: str) -> None:
    filling = {'"': "a", "[": "1,", "1": "1", '{"a":': " "}[opening]
    with pytest.raises(Problem) as caught:
        read(opening + filling * (WINDOW_BYTES * 2))
    assert caught.value.status in {400, 422}


def test_windows_join_without_a_seam() -> None:
    values = ["ä" * (index % 50) + str(index) for index in range(60_000)]
    body = json.dumps(values, ensure_ascii=False).encode()
    assert len(body) > 2 * WINDOW_BYTES
    source, found = Source(body), []
    source.take("[")
    while True:
        value, _ = source.value("", BadFields(), limit=LIMIT, depth=DEPTH)
        found.append(value)
        if source.take(",", "]") == "]":
            break
    assert found == values


@pytest.mark.parametrize(
    "number",
    [
        "1e-20000",
        "1.5e-16384",
        "1E-17000",
        "-1e-401",
        "0e-20000",
        "0E+20000",
        "0." + "0" * 900 + "1",
        "1." + "0" * 2_000,
    ],
)
def test_a_number_that_postgres_could_not_keep_is_refused_at_its_place(number: str) -> None:
    _, bad = read(f'{{"a":[{number}]}}')
    assert [pointer for pointer, _ in bad] == ["/x/a/0"]


@pytest.mark.parametrize("number", ["0.0", "-0.0", "0e0", "0E-400", "1e308", "5e-324", "1.50e+3"])
def test_a_number_that_postgres_keeps_is_read(number: str) -> None:
    assert read(number) == (float(number), [])
