"""The OpenAPI 3.1 document, made from the models that the code validates and answers with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import models_json_schema

from api import models
from api.openapi_lifecycle import LIFECYCLE_ANSWERS, LIFECYCLE_REQUESTS, lifecycle_paths
from api.openapi_shared import (
    HEADERS,
    SCHEMA,
    header_reference,
    operation,
    problem_responses,
    shared_parameters,
)
from api.openapi_story import STORY_ANSWERS, story_paths

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.settings import Settings
    from schema.kinds import Kind

_ANSWERS = (
    models.JobAccepted,
    models.Job,
    models.JobPage,
    models.InputPage,
    *LIFECYCLE_ANSWERS,
    *STORY_ANSWERS,
)
_REQUEST = "JobRequest"
# In the sample data of the local stack, so that it can be tried as it stands.
_EXAMPLE = {
    "inputs": [
        {"indexKey": "MSFT", "effectiveDate": 20100301, "asofindicator": "ADJCLS"},
        {"indexKey": "AAPL", "effectiveDate": 20100301, "asofindicator": "ADJCLS"},
    ]
}


def openapi_document(kinds: Mapping[str, Kind], settings: Settings) -> dict[str, Any]:
    """Describe every route, header, problem and schema of this server and its kinds."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Haulage",
            "version": "1",
            "summary": "Jobs of many inputs, each processed once that counts.",
            "description": "All routes are also served under `/api`. Times are RFC 3339 in UTC. "
            "Errors are `application/problem+json` (RFC 9457).",
        },
        "servers": [{"url": "/"}, {"url": "/api"}],
        "security": [{"apiKey": []}],
        "paths": _paths(settings),
        "components": {
            "securitySchemes": {
                "apiKey": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "hlg_ and 43 characters",
                    "description": "`Authorization: Bearer hlg_…`",
                }
            },
            "schemas": _schemas(kinds, settings),
            "parameters": shared_parameters(kinds),
            "headers": HEADERS,
            "responses": problem_responses(),
        },
    }


def _schemas(kinds: Mapping[str, Kind], settings: Settings) -> dict[str, Any]:
    modes: list[Any] = [(model, "validation") for model in (models.JobFields, *LIFECYCLE_REQUESTS)]
    modes += [(model, "serialization") for model in (*_ANSWERS, models.ProblemDocument)]
    _, definitions = models_json_schema(modes, ref_template=SCHEMA)
    schemas: dict[str, Any] = definitions["$defs"]
    references, schemas_of_kinds = _schemas_of_kinds(kinds, schemas)

    def one_of(members: list[type[Any]]) -> dict[str, Any]:
        choice = [references[(member, "validation")] for member in dict.fromkeys(members)]
        return choice[0] if len(choice) == 1 else {"anyOf": choice}

    request = dict(schemas.pop("JobFields"))
    request["title"] = "JobRequest"
    request["description"] = "A job: its inputs, and how they are to be treated."
    inputs = {
        "type": "array",
        "minItems": 1,
        "maxItems": settings.max_inputs,
        "uniqueItems": True,
        "items": one_of([kind.input_model for kind in kinds.values()]),
        "description": f"At most {settings.max_input_bytes} bytes each; no two may be the same",
    }
    fields = dict(request["properties"])
    fields["kind"] = fields["kind"] | {"enum": sorted(kinds)}
    fields["options"] = {
        "description": "The options of the kind",
        **one_of([kind.options_model for kind in kinds.values()]),
    }
    for name in ("scheduledFor", "expiresAt"):
        fields[name] = {
            "anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}],
            "default": None,
            "description": fields[name].get("description", ""),
        }
    request["properties"] = {"inputs": inputs, **fields}
    request["required"] = ["inputs"]
    request["examples"] = [_EXAMPLE]
    return {**schemas_of_kinds, _REQUEST: request, **schemas}


def _schemas_of_kinds(
    kinds: Mapping[str, Kind], ours: Mapping[str, Any]
) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Give the models of the kinds: what has the name of one of ours gets another."""
    of_kinds = [kind.input_model for kind in kinds.values()]
    of_kinds += [kind.options_model for kind in kinds.values()]
    modes: list[Any] = [(model, "validation") for model in dict.fromkeys(of_kinds)]
    references, definitions = models_json_schema(modes, ref_template=SCHEMA)
    schemas: dict[str, Any] = definitions["$defs"]
    taken = {_REQUEST: None, **ours}
    other_names = {
        name: f"{name}OfKind" for name in schemas if name in taken and schemas[name] != taken[name]
    }
    text = json.dumps([list(references.values()), schemas])
    for name, other in other_names.items():
        assert other not in taken, other
        text = text.replace(f'"{SCHEMA.format(model=name)}"', f'"{SCHEMA.format(model=other)}"')
    pointers, schemas = json.loads(text)
    schemas = {other_names.get(name, name): schema for name, schema in schemas.items()}
    return dict(zip(references, pointers, strict=True)), schemas


def _paths(settings: Settings) -> dict[str, Any]:
    submit = operation(
        "submitJob",
        "Submit a job",
        ("202", "JobAccepted", "Stored: every input will be processed"),
        "Idempotency-Key",
        "400 408 413 415",
    )
    submit["responses"]["202"]["headers"] |= {
        "Location": header_reference("Location"),
        "Idempotency-Replayed": header_reference("IdempotencyReplayed"),
    }
    submit["description"] = (
        f"At most {settings.max_body_bytes} bytes of JSON, or {settings.max_stream_bytes} of lines."
    )
    lines = {
        "type": "string",
        "description": "A JSON text a line: first a JobRequest without its inputs, `{}` if nothing "
        f"else is to be said, then each input; {settings.max_stream_inputs} of them at most.",
        "examples": ["\n".join(json.dumps(line) for line in ({}, *_EXAMPLE["inputs"]))],
    }
    submit["requestBody"] = {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": SCHEMA.format(model="JobRequest")}},
            "application/x-ndjson": {"schema": lines},
        },
    }
    filters = "status kind requestedFrom requestedTo correlationId owner pageSize after"
    listing = operation(
        "listJobs", "List jobs, newest first", ("200", "JobPage", "A page"), filters, "400 403"
    )
    show = operation("showJob", "Show a job", ("200", "Job", "The job"), "jobId", "404")
    inputs = operation(
        "listInputs",
        "Page through the inputs of a job",
        ("200", "InputPage", "A page, by ordinal"),
        "jobId inputStatus pageSize after",
        "400 404",
    )
    return {
        "/jobs": {"post": submit, "get": listing},
        "/jobs/{jobId}": {"get": show},
        "/jobs/{jobId}/inputs": {"get": inputs},
        **story_paths(),
        **lifecycle_paths(),
        **{path: {"get": _open(*about)} for path, about in _OPEN.items()},
    }


_OPEN = {
    "/livez": ("isAlive", "Whether the process lives", "application/json", "503"),
    "/readyz": ("isReady", "Whether its neighbours answer", "application/json", "503"),
    "/scaling": (
        "scaling",
        "How much of each kind waits and runs, of all owners: numbers to scale by",
        "application/json",
        "503",
    ),
    "/openapi.json": ("openapi", "This document", "application/json", ""),
    "/docs": ("docs", "This document, to read and to try", "text/html", ""),
}


def _open(name: str, summary: str, media_type: str, bad: str) -> dict[str, Any]:
    content = {media_type: {"schema": {"type": "string" if "html" in media_type else "object"}}}
    responses = {"200": {"description": summary, "content": content}}
    if bad:
        responses[bad] = {"description": "No, or not to be known now", "content": content}
    return {"operationId": name, "summary": summary, "security": [], "responses": responses}
