"""What the operations of the OpenAPI document share: parameters, headers and refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from api.problems import TYPES
from api.queries import DEFAULT_PAGE, LARGEST_PAGE
from schema.lifecycle import InputStatus, JobStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schema.kinds import Kind

Json = dict[str, Any]

HEADERS: dict[str, Any] = {
    "CorrelationId": {
        "description": "Names this request and everything that follows from it",
        "schema": {"type": "string"},
    },
    "Location": {"description": "Where the job is", "schema": {"type": "string"}},
    "IdempotencyReplayed": {
        "description": "`true` when this answer is that of an earlier request",
        "schema": {"type": "string", "const": "true"},
    },
    "RetryAfter": {"description": "Seconds to wait", "schema": {"type": "integer"}},
    "WwwAuthenticate": {"description": "How to authenticate", "schema": {"type": "string"}},
    "Allow": {"description": "The methods of this address", "schema": {"type": "string"}},
}


def header_reference(name: str) -> dict[str, str]:
    """Point at one of ``HEADERS``."""
    return {"$ref": f"#/components/headers/{name}"}


def shared_parameters(kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """Describe every parameter once; operations point here."""

    def query(name: str, schema: Json, description: str) -> dict[str, Any]:
        return {"name": name, "in": "query", "schema": schema, "description": description}

    def header(name: str, schema: Json, description: str) -> dict[str, Any]:
        return {"name": name, "in": "header", "schema": schema, "description": description}

    def several(values: list[str]) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "string", "enum": values}}

    size = {"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE, "default": DEFAULT_PAGE}
    text, time = {"type": "string"}, {"type": "string", "format": "date-time"}
    visible = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"}
    listed = [
        {
            "name": "jobId",
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": "^J[0-9]{8}_[0-9]{6,19}$"},
            "example": "J20260110_000777",
        },
        query("pageSize", size, "At most so many items"),
        query("after", text, "The `next` of the page before, with the same filters"),
        query("status", several(list(JobStatus)), "Repeat it for several") | {"explode": True},
        query("kind", several(sorted(kinds)), "Repeat it for several") | {"explode": True},
        query("requestedFrom", time, "Not before this time"),
        query("requestedTo", time, "Before this time"),
        query("correlationId", text, "Jobs of this correlation id"),
        query("owner", text, "Jobs of this owner (admin keys only)"),
        header("Idempotency-Key", visible, "Repeating a request with its key makes no second job"),
        header("X-Correlation-Id", text, "Yours if it matches `[A-Za-z0-9._:/+=@-]{1,128}`"),
        header("traceparent", text, "W3C trace context; replaced when malformed"),
        header("tracestate", text, "At most 32 members and 512 characters are kept"),
        header("baggage", text, "At most 64 members and 8,192 bytes are kept"),
    ]
    parameters = {parameter["name"]: parameter for parameter in listed}
    parameters["inputStatus"] = query("status", several(list(InputStatus)), "Repeat for several")
    return parameters


_STATUSES = {
    "400": "The body is not JSON, or the cursor is not of this list.",
    "401": "No valid API key.",
    "403": "The key does not allow this.",
    "404": "There is no such job, or it is another owner's.",
    "405": "The method is not allowed here.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not application/json.",
    "422": "Something in the request is not valid: each place is named.",
    "500": "Something went wrong here.",
    "503": "The database is away, or too much is under way; try again.",
}
_EXTRA_HEADERS = {"401": "WwwAuthenticate", "405": "Allow", "503": "RetryAfter"}
_HEADER_NAMES = {"WwwAuthenticate": "WWW-Authenticate", "RetryAfter": "Retry-After"}


def problem_responses() -> dict[str, Any]:
    """Describe every refusal once; operations point here."""
    responses = {}
    for status, description in _STATUSES.items():
        headers = {"X-Correlation-Id": header_reference("CorrelationId")}
        if status in _EXTRA_HEADERS:
            name = _EXTRA_HEADERS[status]
            headers[_HEADER_NAMES.get(name, name)] = header_reference(name)
        responses[f"Problem{status}"] = {
            "description": description,
            "headers": headers,
            "content": {
                "application/problem+json": {
                    "schema": {"$ref": "#/components/schemas/ProblemDocument"}
                }
            },
        }
    types = ", ".join(f"`{name}`" for name in TYPES)
    responses["Problem422"]["description"] = _STATUSES["422"] + f" The types of problems: {types}."
    return responses
