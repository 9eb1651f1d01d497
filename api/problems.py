"""Every refusal is an RFC 9457 problem: one shape, one type per cause, a pointer per field."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal

from starlette.responses import Response

from schema.errors import Refusal
from schema.outcome import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic import ValidationError

MOST_LISTED = 100
# Reading ends here: judging millions of bad inputs helps nobody.
MOST_COUNTED = 1_000
_TEXT_LIMIT = 300
Place = Literal["pointer", "parameter", "header"]

# The types that a client may branch on, beside the status; the last part of each URN.
TYPES = {
    "not-json": "The body is not JSON",
    "invalid-request": "The request is not valid",
    "invalid-query": "The query parameters are not valid",
    "invalid-cursor": "The cursor does not belong to this list",
    "idempotency-key-reused": "The idempotency key was used for another request",
    "unauthorized": "A valid API key is needed",
    "forbidden": "The API key does not allow this",
    "not-found": "There is nothing here",
    "conflict": "Its present state does not allow this",
    "method-not-allowed": "The method is not allowed here",
    "request-timeout": "The body did not arrive in time",
    "too-large": "The body is too large",
    "unsupported-media-type": "The body is not of a supported type",
    "internal": "Something went wrong here",
    "unavailable": "A neighbour is away; try again",
}


@dataclass(frozen=True, slots=True)
class BadField:
    """One thing wrong: where (a JSON pointer, a query parameter or a header) and why.

    ``line`` is that of the body, from 1, where the body is read by lines.
    """

    place: Place
    name: str
    detail: str
    line: int | None = None

    def document(self) -> dict[str, str | int]:
        """Give it as the member of ``errors`` that it becomes, printable and short."""
        name = clean(self.name)[:_TEXT_LIMIT] if self.name else ""
        document: dict[str, str | int] = {self.place: name}
        if self.line is not None:
            document["line"] = self.line
        return {**document, "detail": clean(self.detail)[:_TEXT_LIMIT]}


class Problem(Refusal):
    """A request that is refused, with all that the answer says about it."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        errors: Sequence[BadField] = (),
        error_count: int | None = None,
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        assert kind in TYPES, "problem types are a closed set"
        self.status = status
        self.kind = kind
        self.detail = detail
        self.errors = tuple(errors[:MOST_LISTED])
        self.error_count = len(errors) if error_count is None else error_count
        self.headers = dict(headers or {})
        self.members = dict(members or {})

    def response(self, correlation_id: str) -> Response:
        """Render it as ``application/problem+json``."""
        document: dict[str, Any] = {
            "type": f"urn:haulage:problem:{self.kind}",
            "title": TYPES[self.kind],
            "status": self.status,
            "detail": clean(self.detail),
            "correlationId": correlation_id,
            **self.members,
        }
        if self.errors:
            document["errors"] = [bad.document() for bad in self.errors]
            document["errorCount"] = self.error_count
        return Response(
            json.dumps(document),
            status_code=self.status,
            headers=self.headers,
            media_type="application/problem+json",
        )


def no_line() -> None:
    """Tell of no line: the body is not read by lines, or it is the whole of it that is wrong."""


@dataclass(slots=True)
class BadFields:
    """Gathers what is wrong with one request: lists a hundred, counts on to a thousand.

    ``line`` tells on which line of the body stands what is noted next, if lines count.
    """

    listed: list[BadField] = field(default_factory=list)
    count: int = 0
    line: Callable[[], int | None] = no_line

    def add(self, pointer: str, detail: str) -> None:
        """Note one bad field of the body."""
        self.count += 1
        if len(self.listed) < MOST_LISTED:
            self.listed.append(BadField("pointer", pointer, detail, self.line()))

    def add_validation(
        self, error: ValidationError, pointer: str, document: object, *, what: str
    ) -> None:
        """Note what pydantic found in ``document``, once a place.

        It stands at ``pointer``; ``what`` names it to people, as in "an input of kind export".
        """
        if len(self.listed) >= MOST_LISTED:
            self.count += error.error_count()
            return
        noted = {bad.name for bad in self.listed}
        for found in error.errors(include_url=False, include_context=False, include_input=False):
            place = pointer + _pointer(document, found["loc"])
            if place in noted or found["type"] == "json_invalid":
                continue
            if found["type"] == "extra_forbidden":
                parent = place.rpartition("/")[0].removeprefix(pointer).removeprefix("/")
                self.add(place, f"is not a field of {parent or what}")
            else:
                self.add(place, found["msg"].removeprefix("Value error, "))

    def summary(self) -> str:
        """Say how much is wrong, in one line."""
        more = self.count - len(self.listed)
        detail = f"{self.count} field{'s are' if self.count != 1 else ' is'} not valid"
        if self.count >= MOST_COUNTED:
            detail = f"at least {detail}"
        if more:
            detail += f"; the first {len(self.listed)} are listed, {more} more are not"
        return detail

    def problem(self) -> Problem:
        """Make the 422 that names them."""
        return Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "invalid-request",
            self.summary(),
            errors=self.listed,
            error_count=self.count,
        )


def escape(token: str) -> str:
    """Escape one member name for a JSON pointer (RFC 6901)."""
    return token.replace("~", "~0").replace("/", "~1")


def _pointer(document: object, location: tuple[int | str, ...]) -> str:
    """Follow pydantic's location as far as the document goes: union tags are no members."""
    pointer = ""
    for part in location:
        if isinstance(document, dict):
            pointer += "/" + escape(str(part))
            document = document.get(part)
        elif isinstance(document, list) and isinstance(part, int):
            pointer += f"/{part}"
            document = document[part] if part < len(document) else None
        else:
            break
    return pointer


def not_found(what: str = "there is nothing at this address") -> Problem:
    """Make a 404."""
    return Problem(HTTPStatus.NOT_FOUND, "not-found", what)


def conflict(detail: str, **members: Any) -> Problem:
    """Make a 409; ``members`` say what the state is."""
    return Problem(HTTPStatus.CONFLICT, "conflict", detail, members=members)


def unavailable(detail: str, *, retry_after_seconds: int = 2) -> Problem:
    """Make a 503 that says when to come back."""
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "unavailable",
        detail,
        headers={"Retry-After": str(retry_after_seconds)},
    )
