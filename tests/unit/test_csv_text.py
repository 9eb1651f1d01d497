"""Rows as CSV that every reader reads alike, and that no spreadsheet runs."""

import csv
import datetime as dt
import io
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.processors.csv_text import encode

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


def read(data: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(data.decode(), newline=""), strict=True))


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_a_text_cell_that_would_be_a_formula_is_made_inert(start: str) -> None:
    formula = f"{start}cmd|' /C calc'!A0"
    assert read(encode([(formula, 1)])) == [["'" + formula, "1"]]


@pytest.mark.parametrize("text", ["a=b", "1-2", "x@y", "'=1", "", " =1", "ä"])
def test_other_text_is_left_alone(text: str) -> None:
    assert read(encode([(text, "z")])) == [[text, "z"]]


def test_numbers_are_left_alone() -> None:
    row = (
        -1,
        Decimal("-12.50"),
        Decimal("1E+3"),
        Decimal("1E-8"),
        -0.5,
        True,
        Decimal("-Infinity"),
    )
    assert encode([row]) == b"-1,-12.50,1000,0.00000001,-0.5,true,-Infinity\r\n"


def test_a_column_name_that_would_be_a_formula_is_made_inert() -> None:
    assert encode([(1,)], header=["=x"]) == b"'=x\r\n1\r\n"


def test_dates_are_iso_8601_and_null_is_empty() -> None:
    moment = dt.datetime(2026, 1, 10, 12, 30, tzinfo=dt.UTC)
    row = (dt.date(2024, 2, 2), moment, dt.time(1, 2), None)
    assert encode([row]) == b"2024-02-02,2026-01-10T12:30:00+00:00,01:02:00,\r\n"


def test_what_csv_has_no_type_for_is_text_and_as_inert() -> None:
    row = (dt.timedelta(seconds=-1), {"a": [1]}, b"\x01\xff")
    assert read(encode([row])) == [["'-1 day, 23:59:59", '{"a":[1]}', "\\x01ff"]]


def test_separators_quotes_and_line_breaks_are_quoted_as_rfc_4180_says() -> None:
    assert encode([("a,b", 'say "x"', "two\r\nlines")]) == (b'"a,b","say ""x""","two\r\nlines"\r\n')


@given(st.lists(st.tuples(TEXT, TEXT), max_size=5))
def test_a_reader_gets_back_every_cell(rows: list[tuple[str, str]]) -> None:
    for (first, second), got in zip(rows, read(encode(rows)), strict=True):
        assert [cell.removeprefix("'") for cell in got] == [
            first.removeprefix("'"),
            second.removeprefix("'"),
        ]
        assert not any(cell.startswith(tuple("=+-@\t\r\n")) for cell in got)
