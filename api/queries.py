"""Query parameters, read strictly: what is unknown, repeated or out of range is named."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING

from pydantic_core import PydanticCustomError

from api.models import read_time
from api.problems import BadField, Problem

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable

    from starlette.datastructures import QueryParams
    from starlette.requests import Request

DEFAULT_PAGE = 100
LARGEST_PAGE = 500
OWNER = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Whatever a processor may have called its error, as it is stored and shown: without white space
# around it, and without control characters but a tab and the end of a line.
_NO_CONTROL = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
ERROR_CLASS = rf"[^\s{_NO_CONTROL}]([^{_NO_CONTROL}]{{0,198}}[^\s{_NO_CONTROL}])?"
_DIGITS = re.compile(r"[0-9]{1,9}")


def refuse_parameters(request: Request) -> None:
    """Refuse a request that has query parameters, where there are none to give."""
    if request.scope["query_string"]:
        Query(request.query_params).finish()


class Query:
    """The parameters of one request; ``finish`` refuses the request if any was wrong."""

    def __init__(self, parameters: QueryParams) -> None:
        self._given: dict[str, list[str]] = {}
        for name, value in parameters.multi_items():
            self._given.setdefault(name, []).append(value)
        self._bad: list[BadField] = []

    def one(self, name: str, pattern: re.Pattern[str], what: str) -> str | None:
        """Take a parameter that may be given once."""
        values = self._given.pop(name, [])
        if not values:
            return None
        if len(values) > 1:
            self.refuse(name, "may be given once")
        elif not pattern.fullmatch(values[0]):
            self.refuse(name, f"must be {what}")
        return values[0]

    def many(self, name: str, allowed: Iterable[str]) -> tuple[str, ...] | None:
        """Take a parameter that may be repeated, with values of a closed set."""
        values = self._given.pop(name, [])
        known = sorted(allowed)
        if any(value not in known for value in values):
            self.refuse(name, f"must be one of {', '.join(known)}")
        return tuple(sorted(set(values))) or None

    def time(self, name: str) -> dt.datetime | None:
        """Take a time."""
        text = self.one(name, re.compile(r".+", re.DOTALL), "a time")
        if text is None:
            return None
        try:
            # A plus sign that was not escaped arrives as a space.
            return read_time(text.replace(" ", "+"))
        except PydanticCustomError as error:
            self.refuse(name, error.message())
            return None

    def page_size(self) -> int:
        """Take ``pageSize``."""
        what = f"a number from 1 to {LARGEST_PAGE}"
        text = self.one("pageSize", _DIGITS, what)
        if text is None or not _DIGITS.fullmatch(text):
            return DEFAULT_PAGE
        if not 1 <= int(text) <= LARGEST_PAGE:
            self.refuse("pageSize", f"must be {what}")
        return int(text)

    def after(self) -> str | None:
        """Take ``after``; the list it belongs to must read it."""
        values = self._given.pop("after", [])
        if len(values) > 1:
            self.refuse("after", "may be given once")
        return values[0] if values else None

    def refuse(self, name: str, detail: str) -> None:
        """Note a parameter that is wrong."""
        self._bad.append(BadField("parameter", name, detail))

    def finish(self) -> None:
        """Return if every parameter was known and valid; else raise the problem naming them."""
        for name in self._given:
            self.refuse(name, "is no parameter of this address")
        if many := len(self._bad):
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "invalid-query",
                f"{many} query parameter{'s are' if many != 1 else ' is'} not valid",
                errors=self._bad,
            )
