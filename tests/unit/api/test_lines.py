"""Jobs that come as lines: the first is the job, each other one an input."""

import json
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, JsonValue

from api.inputs import Limits
from api.problems import Problem
from api.strict_json import Source
from schema.export import EXPORT
from schema.kinds import JobInput, Kind
from tests.unit.api.readings import Read, read_whole


class Note(JobInput):
    text: JsonValue
    more: JsonValue = None


class Flat(JobInput):
    text: str
    more: Annotated[int, Field(ge=-(2**63), lt=2**62)] | None = None


def one_case(note: BaseModel) -> object:
    assert isinstance(note, Note)
    return str(note.text).lower()


KINDS = {
    "export": EXPORT,
    "note": Kind("note", Note, "unused:unused"),
    "flat": Kind("flat", Flat, "unused:unused"),
    "word": Kind("word", Note, "unused:unused", identity=one_case),
}
LIMITS = Limits(inputs=50, input_bytes=1_024, stream_inputs=1_000)
HEAD = '{"kind":"note"}'


def read(text: str | bytes, *, by_lines: bool = True) -> Read:
    return read_whole(text, KINDS, LIMITS, by_lines=by_lines)


def refused(text: str, *, by_lines: bool = True) -> tuple[int, dict[str, str]]:
    with pytest.raises(Problem) as caught:
        read(text, by_lines=by_lines)
    return caught.value.status, {bad.name: bad.detail for bad in caught.value.errors}


def lines(*inputs: Any, head: str = HEAD) -> str:
    return "\n".join([head, *(json.dumps({"text": text}) for text in inputs)])


@pytest.mark.parametrize("between", ["\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n \n"])
def test_lines_are_the_job_that_one_text_would_be(between: str, end: str) -> None:
    job = {"kind": "note", "priority": 7, "metadata": {"a": 1}}
    inputs = [{"text": f"n {number}: {'x' * (number % 90)}"} for number in range(40)]
    streamed = read(between.join(map(json.dumps, [job, *inputs])) + end)
    whole = read(json.dumps({**job, "inputs": inputs}), by_lines=False)
    assert streamed.texts == whole.texts
    assert streamed.digest == whole.digest
    assert streamed.submission.fields == whole.submission.fields


@pytest.mark.parametrize("end", ["\n", "\r\n", " \t\r\n"])
def test_lines_are_read_together_however_they_end(end: str) -> None:
    run = Source(f'{{"text":"a"}}{end}'.encode() * 3).run(limit=1_000, by_lines=True)
    assert run is not None
    assert run.lines == 3


@pytest.mark.parametrize(
    ("text", "by_lines", "detail"),
    [
        ('{"kind":"note","inputs":[{"text":"a', False, "the body ends within a value"),
        ('{"kind":"note","inputs":[{"text":', False, "the body ends within a value"),
        ('{"kind":"note","inputs":[{"text":"a"}', False, "the body ends, expected , or ]"),
        ('{"kind":"note"}\n{"text":"a"}\n{"text":"b', True, "the body ends within a value"),
        ('{"kind":"no', True, "the body ends within a value"),
        ("", False, "the body is empty"),
        ('\n{"kind":"note"}\n{"text":"a"}', True, "the first line is empty"),
    ],
)
def test_a_body_that_was_cut_off_is_told_so(text: str, detail: str, *, by_lines: bool) -> None:
    with pytest.raises(Problem, match=detail) as caught:
        read(text, by_lines=by_lines)
    assert caught.value.status == 400


def test_lines_may_end_as_windows_ends_them_and_be_indented() -> None:
    text = lines(*range(30)).replace("\n", " \r\n\t")
    assert read(text).submission.many_inputs == 30


def test_a_job_of_lines_may_hold_more_inputs_than_one_text() -> None:
    assert read(lines(*range(1_000))).submission.many_inputs == 1_000
    status, bad = refused(lines(*range(1_001)))
    assert (status, bad) == (422, {"/inputs": "holds more than 1000 inputs"})


def test_all_that_is_wrong_is_named_by_the_ordinal_of_its_input() -> None:
    text = lines("a", "b", "a", head='{"kind":"note","priority":10,"x":1}')
    text += '\n{"text":"c","y":1}\n{"text":"d","text":"e"}\n{"text":"\\u0000"}\n{"text":NaN}\n7'
    status, bad = refused(text)
    assert status == 422
    assert set(bad) == {
        "/priority", "/x", "/inputs/2", "/inputs/3/y", "/inputs/4/text", "/inputs/5/text",
        "/inputs/6/text", "/inputs/7",
    }  # fmt: skip
    assert bad["/inputs/2"] == "inputs 0 and 2 are the same"


@pytest.mark.parametrize("text", ["", "{}", "{}\n", HEAD + "\n\n"])
def test_a_job_without_inputs_is_refused(text: str) -> None:
    status, bad = refused(text)
    assert status == 400 if not text else bad.keys() == {"/inputs"}


@pytest.mark.parametrize("inputs", ["[]", '[{"text":1}]', "7"])
def test_inputs_on_the_first_line_are_refused(inputs: str) -> None:
    _, bad = refused(f'{{"kind":"note","inputs":{inputs}}}\n{{"text":2}}')
    assert set(bad) == {"/inputs"}


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('{"text":1},{"text":2}', 400),
        ('{"text":1} {"text":2}', 400),
        ('{"text":1},', 400),
        (',{"text":1}', 400),
        ('{"text":[1\n2]}\n{"text":1},{"text":2}', 400),
        ('{"text":"a\nb"}', 400),
        ('{"text":1\n"more":2}', 400),
        ('{"text":1,\n"more":2}', 422),
        ('{"text":[1,\n2]}', 422),
        ('{"text":1', 400),
        ("hello", 400),
        ('[{"text":1}]', 422),
    ],
)
@pytest.mark.parametrize("around", [0, 20])
def test_each_line_is_one_object(text: str, status: int, around: int) -> None:
    before, after = lines(*range(around)), lines(*range(50, 50 + around), head="")
    assert refused(f"{before}\n{text}{after}")[0] == status


def test_where_lines_stop_being_json_is_said_by_the_character_and_the_line() -> None:
    text = lines(*range(30), head='{"kind":"note","metadata":{"ä":1}}') + "\n\nhello"
    where = f"at character {text.index('hello')} of the body, line 33"
    with pytest.raises(Problem, match=where) as caught:
        read(text)
    assert [bad.document() for bad in caught.value.errors] == [
        {"pointer": "/inputs/30", "line": 33, "detail": "no JSON value"}
    ]


@pytest.mark.parametrize(
    ("text", "pointer", "line"),
    [
        ('{"kind":"note"', "", 1),
        ('{"kind":"note"} {}', "", 1),
        (HEAD + '\n{"text":1}\n{"text":2', "/inputs/1", 3),
        # What is wrong with a line may only show on the next.
        (HEAD + '\n{"text":1\n{"text":2}', "/inputs/0", 2),
        (HEAD + '\n{"text":1}\n{"text":2},\n{"text":3}', "/inputs/1", 3),
        (HEAD.encode() + b'\n{"text":1}\n{"text":"\xff"}\n', "", 3),
    ],
)
def test_a_line_that_is_not_json_is_named(text: str | bytes, pointer: str, line: int) -> None:
    with pytest.raises(Problem, match=f", line {line}$") as caught:
        read(text)
    (bad,) = caught.value.errors
    assert (caught.value.status, bad.name, bad.line) == (400, pointer, line)


def test_all_that_is_wrong_with_an_input_names_its_line() -> None:
    head = '{"kind":"note","priority":10,"x":1}'
    text = f'{head}\n\n{{"text":"a"}}\n \n{{"text":"a"}}\n{{"text":"c","y":1,"z":1}}\n'
    # So much that what stood before is let go while the last lines are read.
    text += "".join(f'{{"text":"{number}{"x" * 900}"}}\n' for number in range(1_200 - 4))
    limits = Limits(inputs=1, input_bytes=1_024, stream_inputs=1_198)
    with pytest.raises(Problem) as caught:
        read_whole(text + "7\n", KINDS, limits, by_lines=True)
    assert {bad.name: bad.line for bad in caught.value.errors} == {
        "/inputs/1": 5,
        "/inputs/2/y": 6,
        "/inputs/2/z": 6,
        "/inputs": 1_202,
    }


def test_what_is_wrong_with_the_job_is_on_the_first_line() -> None:
    with pytest.raises(Problem) as caught:
        read('{"kind":"no","priority":10,"x":{"a":NaN}}\n{"text":1}')
    assert {(bad.name, bad.line) for bad in caught.value.errors} == {
        ("/kind", 1), ("/priority", 1), ("/x/a", 1),
    }  # fmt: skip


def test_of_a_body_that_is_one_text_no_line_is_named() -> None:
    with pytest.raises(Problem) as caught:
        read('{"kind":"note",\n"inputs":[{"y":1}]}', by_lines=False)
    assert {bad.line for bad in caught.value.errors} == {None}
    with pytest.raises(Problem, match="at character 16 of the body$") as caught:
        read('{"kind":"note",\nx', by_lines=False)
    assert caught.value.errors == ()


def test_a_kind_says_itself_what_is_the_same() -> None:
    head = '{"kind":"word"}'
    assert read(lines(*"abcdefgh", head=head)).submission.many_inputs == 8
    _, bad = refused(lines(*"abcdefgh", "B", *"ijk", "D", head=head))
    assert bad == {
        "/inputs/8": "inputs 1 and 8 are the same",
        "/inputs/12": "inputs 3 and 12 are the same",
    }


def test_an_input_that_cannot_be_stored_is_the_same_as_no_other() -> None:
    _, bad = refused(HEAD + '\n{"text":NaN}\n{"text":null}\n{"text":NaN}\n{"text":null}')
    assert set(bad) == {"/inputs/0/text", "/inputs/2/text", "/inputs/3"}
    assert bad["/inputs/3"] == "inputs 1 and 3 are the same"


ODD = ["},{", "}\n", ":", "[", "\x00"]
values = st.recursive(
    st.none() | st.integers() | st.floats() | st.text() | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
inputs = st.lists(
    st.dictionaries(st.sampled_from(["text", "more", "odd"]), values) | values, min_size=1
)


@given(inputs, st.booleans(), st.booleans())
def test_inputs_are_read_together_as_each_is_alone(
    inputs: list[Any], by_lines: bool, is_ascii: bool
) -> None:
    """What is read in runs is what is read one by one, and so is what is wrong with it."""
    texts = [json.dumps(value, ensure_ascii=is_ascii) for value in inputs]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return
    compare_together_and_alone("note", texts, by_lines=by_lines)


words = st.sampled_from(
    ['"a"', '"b"', '"x:y"', '"},{"', '"\\u0041"', '"\\u0000"', '"\\ud800"', '"é"']
)
numbers = st.sampled_from(["0", "-7", "null", str(2**62), "1e3", "NaN", "01", "[1]", '{"a":1}'])
pairs = st.tuples(st.sampled_from(['"text"', '"more"', '"odd"']), words | numbers)
space = st.sampled_from(["", " ", "\t"])
few_pairs = st.lists(pairs, max_size=2) | st.just(list[tuple[str, str]]())


@given(st.lists(st.tuples(few_pairs, words, space), min_size=1), st.booleans())
@settings(max_examples=300)
def test_inputs_of_plain_values_are_read_together_as_each_is_alone(
    inputs: list[tuple[list[tuple[str, str]], str, str]], by_lines: bool
) -> None:
    """However many names are repeated in one and left out of another."""
    texts = [
        "{" + ",".join(f"{name}:{space}{value}" for name, value in [*given, ('"text"', text)]) + "}"
        for given, text, space in inputs
    ]
    compare_together_and_alone("flat", texts, by_lines=by_lines)


SOUND = '{"text":"a","more":1}'


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        # As many names as two inputs have, one of which leaves one out.
        ('{"text":"b"}\n{"text":"c","text":"d"}', {"/inputs/2/text": "is given twice"}),
        (
            '{"text":"\\u0000"}\n{"text":"b"}',
            {"/inputs/1/text": "holds a NUL character or half of a surrogate pair"},
        ),
    ],
)
def test_what_is_wrong_among_plain_values_is_named(text: str, bad: dict[str, str]) -> None:
    assert refused(f'{{"kind":"flat"}}\n{SOUND}\n{text}\n{{"text":"z"}}') == (422, bad)


def test_an_input_of_plain_values_on_two_lines_is_no_json() -> None:
    text = f'{{"kind":"flat"}}\n{SOUND}\n{{"text":"b"\n"more":2}}\n{{"text":"c"}}'
    assert refused(text) == (400, {"/inputs/1": "no JSON value"})


def compare_together_and_alone(kind: str, texts: list[str], *, by_lines: bool) -> None:
    head = f'{{"kind":"{kind}"}}'
    alone: list[str] = []
    wrong: set[str] = set()
    for ordinal, text in enumerate(texts):
        try:
            (body,) = read(f"{head}\n{text}").texts
        except Problem as problem:
            wrong |= {bad.name.replace("/inputs/0", f"/inputs/{ordinal}") for bad in problem.errors}
            if problem.status == 400:
                wrong = {f"{problem.status}"}
                break
        else:
            if body in alone:
                wrong.add(f"/inputs/{ordinal}")
            alone.append(body)
    if by_lines:
        together = "\n".join([head, *texts])
    else:
        together = f'{{"kind":"{kind}","inputs":[{",".join(texts)}]}}'
    try:
        read_together = read(together, by_lines=by_lines).texts
    except Problem as problem:
        names = {bad.name for bad in problem.errors}
        assert (names if problem.status != 400 else {"400"}) == wrong
    else:
        assert not wrong
        assert read_together == alone
