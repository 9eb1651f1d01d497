"""Rows as CSV: RFC 4180 with a header line, UTF-8, and nothing that a spreadsheet would run.

Numbers stay numbers and dates are ISO 8601. A text cell (or column name) that begins with one
of ``= + - @``, a tab or a line break gets an apostrophe in front: spreadsheets would take it
for a formula. NULL and the empty text are both an empty cell.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

CONTENT_TYPE = "text/csv; charset=utf-8; header=present"
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def encode(rows: Iterable[Sequence[Any]], *, header: Iterable[str] | None = None) -> bytes:
    """Give rows as CSV lines, after a header line if there is one to write."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\r\n")
    if header is not None:
        writer.writerow([inert(name) for name in header])
    writer.writerows(
        [
            [
                value if (write := _WRITERS.get(type(value), _other)) is None else write(value)
                for value in row
            ]
            for row in rows
        ]
    )
    return text.getvalue().encode()


def inert(text: str) -> str:
    """Take from a text the meaning of a formula; texts that have none stay as they are."""
    return "'" + text if text.startswith(_FORMULA_STARTS) else text


def _other(value: object) -> str:
    return inert(str(value))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


# By exact type; None: the csv module writes it as we want it, and faster. The rest is text.
_WRITERS: dict[type, Callable[[Any], str] | None] = {
    type(None): None,
    str: inert,
    bool: lambda value: "true" if value else "false",
    int: None,
    float: None,
    Decimal: "{:f}".format,  # numbers as small as 0.00000001 would else be 1E-8
    dt.date: None,
    dt.datetime: dt.datetime.isoformat,
    bytes: lambda value: f"\\x{value.hex()}",
    dict: _json,
    list: _json,
}
