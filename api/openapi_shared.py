"""What the operations of the OpenAPI document share: parameters, headers and refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from api.problems import TYPES
from api.queries import DEFAULT_PAGE, LARGEST_PAGE
from schema.lifecycle import InputStatus, JobStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schema.kinds import Kind

Json = dict[str, Any]
_REDRIVE = "01912d68-783e-7a03-8467-5661c1243ad4"
SCHEMA = "#/components/schemas/{model}"

HEADERS: dict[str, Any] = {
    "CorrelationId": {
        "description": "Names this request and everything that follows from it; of a replay, the"
        " id of its job",
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


def operation(
    name: str, summary: str, answer: tuple[str, str, str], parameters: str, refusals: str
) -> Json:
    """Describe an operation: its answer is (status, model, meaning), the rest are names."""
    status, model, description = answer
    common = ["X-Correlation-Id", "traceparent", "tracestate", "baggage"]
    good: Json = {
        "description": description,
        "headers": {"X-Correlation-Id": header_reference("CorrelationId")},
        "content": {"application/json": {"schema": {"$ref": SCHEMA.format(model=model)}}},
    }
    statuses = sorted({*refusals.split(), "401", "405", "422", "500", "503"})
    problems = {status: _refusal(status, parameters.split(), statuses) for status in statuses}
    return {
        "operationId": name,
        "summary": summary,
        "parameters": [
            {"$ref": f"#/components/parameters/{each}"} for each in (*parameters.split(), *common)
        ],
        "responses": {status: good, **problems},
    }


def _refusal(status: str, parameters: Sequence[str], statuses: Sequence[str]) -> Json:
    """Point at a shared refusal; where its status has several types, say which may come here."""
    refusal: Json = {"$ref": f"#/components/responses/Problem{status}"}
    takes_body = "415" in statuses
    may_come = {
        "not-json": takes_body,
        "invalid-cursor": "after" in parameters,
        "invalid-request": takes_body,
        "invalid-query": True,
        "idempotency-key-reused": "Idempotency-Key" in parameters,
    }
    types = [name for name in _TYPES_OF_STATUS.get(status, ()) if may_come[name]]
    if types:
        reasons = "; ".join(
            f"`{name}`: {TYPES[name][0].lower()}{TYPES[name][1:]}" for name in types
        )
        refusal["description"] = f"{reasons}."
    return refusal


def shared_parameters(kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """Describe every parameter once; operations point here."""

    def query(name: str, schema: Json, description: str) -> dict[str, Any]:
        return {"name": name, "in": "query", "schema": schema, "description": description}

    def path(name: str, schema: Json, example: object) -> Json:
        return {"name": name, "in": "path", "required": True, "schema": schema, "example": example}

    def header(name: str, schema: Json, description: str) -> dict[str, Any]:
        return {"name": name, "in": "header", "schema": schema, "description": description}

    def several(values: list[str]) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "string", "enum": values}}

    size = {"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE, "default": DEFAULT_PAGE}
    text, time = {"type": "string"}, {"type": "string", "format": "date-time"}
    visible = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"}
    key = {"type": "string", "pattern": "^J[0-9]{8}_[0-9]{6,19}$"}
    fingerprint = {"type": "string", "pattern": "^[0-9a-f]{16}$"}
    listed = [
        path("jobId", key, "J20260110_000777"),
        path("ordinal", {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, 0),
        path("redriveId", {"type": "string", "format": "uuid"}, _REDRIVE),
        path("id", {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, 1),
        query("fingerprint", fingerprint, "Letters of this cause"),
        query("diedFrom", time, "Not before this time"),
        query("diedTo", time, "Before this time"),
        query("errorClass", text, "Letters whose error is of this class"),
        query("pageSize", size, "At most so many items"),
        query("after", text, "The `next` of the page before, with the same filters"),
        query("status", several(list(JobStatus)), "Repeat it for several") | {"explode": True},
        query("kind", several(sorted(kinds)), "Repeat it for several") | {"explode": True},
        query("requestedFrom", time, "Not before this time"),
        query("requestedTo", time, "Before this time"),
        query("correlationId", text, "Jobs of this correlation id"),
        query("owner", text, "What is this owner's (admin keys only)"),
        header("Idempotency-Key", visible, "Repeating a request with its key makes no second job"),
        header("X-Correlation-Id", text, "Yours if it matches `[A-Za-z0-9._:/+=@-]{1,128}`"),
        header("traceparent", text, "W3C trace context; replaced when malformed"),
        header("tracestate", text, "At most 32 members and 512 characters are kept"),
        header("baggage", text, "At most 64 members and 8,192 bytes are kept"),
    ]
    parameters = {parameter["name"]: parameter for parameter in listed}
    parameters["letterKind"] = query("kind", text, "Letters of this kind")
    parameters["letterJob"] = query("jobId", key, "Letters of this job")
    one = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
    parameters["inputOrdinal"] = query("ordinal", one, "Only what happened to this input")
    correlation = {"type": "string", "pattern": "^[A-Za-z0-9._:/+=@-]{1,128}$"}
    parameters["correlation"] = path("correlationId", correlation, "order-42")
    parameters["inputStatus"] = query("status", several(list(InputStatus)), "Repeat for several")
    return parameters


_STATUSES = {
    "400": "The body is not JSON, or the cursor is not of this list.",
    "401": "No valid API key.",
    "403": "The key does not allow this.",
    "404": "There is no such thing, or it is another owner's.",
    "405": "The method is not allowed here.",
    "409": "The state that it is in does not allow this: `detail` names it.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not of a type that this address takes.",
    "422": "Something in the request is not valid: each place is named.",
    "500": "Something went wrong here.",
    "503": "The database is away, or too much is under way; try again.",
}
# The types of the statuses that have more than one.
_TYPES_OF_STATUS = {
    "400": ("not-json", "invalid-cursor"),
    "422": ("invalid-request", "invalid-query", "idempotency-key-reused"),
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
    return responses
