import json
import re
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import BaseModel
from starlette.routing import Mount, Route

from api.openapi import openapi_document
from api.resource import Resource
from localstack.seed import ASOF_INDICATOR, read_prices
from schema.export import EXPORT
from schema.kinds import JobInput, JobOptions, Kind
from tests.integration.api.conftest import ABC, Api, notes
from tests.integration.api.working import Work, by_ordinal, submit
from tests.platform import settings_for


@pytest.fixture
async def document(client: httpx.AsyncClient) -> dict[str, Any]:
    response = await client.get("/openapi.json")
    document: dict[str, Any] = response.json()
    return document


def check(document: dict[str, Any], schema: str, instance: Any) -> None:
    reference = {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
    Draft202012Validator(reference).validate(instance)


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    OpenAPIV31SpecValidator(document).validate()
    assert document["openapi"].startswith("3.1")


def test_every_route_and_method_is_in_the_document(api: Api, document: dict[str, Any]) -> None:
    served = {}
    for route in api.app._app.routes:
        assert isinstance(route, Mount | Route)
        if isinstance(route, Route):
            resource = route.endpoint
            assert isinstance(resource, Resource)
            served[resource._template] = {method.lower() for method in resource._handlers}
    pages_of_docs = {"/", "/docs/page.js", "/docs/page.css"}
    assert {path: set(item) for path, item in document["paths"].items()} == {
        path: methods for path, methods in served.items() if path not in pages_of_docs
    }


def test_a_kind_whose_models_are_named_like_ours_breaks_no_reference() -> None:
    class Job(JobInput):
        own: int

    class Input(JobOptions):
        nested: Job | None = None

    class JobRequest(BaseModel):
        job: Job

    kinds = {
        "export": EXPORT,
        "one": Kind("one", Job, "unused:unused", options_model=Input),
        "two": Kind("two", JobRequest, "unused:unused"),
    }
    document = openapi_document(kinds, settings_for("postgresql://127.0.0.1:1/nowhere"))
    OpenAPIV31SpecValidator(document).validate()
    schemas = document["components"]["schemas"]
    for pointer in re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)):
        assert pointer in schemas
    assert "jobId" in schemas["Job"]["properties"]
    assert "ordinal" in schemas["Input"]["properties"]
    assert "own" in schemas["JobOfKind"]["properties"]
    for body in ({"own": 1}, {"job": {"own": 1}}):
        check(document, "JobRequest", {"kind": "one", "inputs": [body]})


async def test_answers_are_what_the_document_says(
    client: httpx.AsyncClient, document: dict[str, Any]
) -> None:
    for body in ({"inputs": [ABC]}, notes(21), notes(3) | {"expiresAt": "2096-01-01T00:00:00Z"}):
        check(document, "JobRequest", body)
        accepted = await client.post("/jobs", json=body)
        check(document, "JobAccepted", accepted.json())
        job = accepted.headers["location"]
        check(document, "Job", (await client.get(job)).json())
        check(document, "InputPage", (await client.get(f"{job}/inputs")).json())
    check(document, "JobPage", (await client.get("/jobs")).json())
    for refused in (
        await client.get("/nothing"),
        await client.post("/jobs", json={"inputs": [{}]}),
        await client.get("/jobs?x=1"),
    ):
        check(document, "ProblemDocument", refused.json())


async def test_headers_and_refusals_of_the_document_are_those_sent(
    client: httpx.AsyncClient, document: dict[str, Any]
) -> None:
    submit = document["paths"]["/jobs"]["post"]
    names = {parameter["$ref"].split("/")[-1] for parameter in submit["parameters"]}
    assert {"Idempotency-Key", "X-Correlation-Id", "traceparent"} <= names
    accepted = await client.post("/jobs", json={"inputs": [ABC]}, headers={"Idempotency-Key": "k"})
    again = await client.post("/jobs", json={"inputs": [ABC]}, headers={"Idempotency-Key": "k"})
    for name in submit["responses"]["202"]["headers"]:
        assert name in again.headers
    assert accepted.text == again.text
    assert document["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"


def test_a_refusal_names_the_types_that_may_come_there_and_no_others(
    document: dict[str, Any],
) -> None:
    def types(path: str, method: str, status: str) -> set[str]:
        about = document["paths"][path][method]["responses"][status]
        return set(re.findall("`([a-z-]+)`", about["description"]))

    assert types("/jobs", "get", "400") == {"invalid-cursor"}
    assert types("/jobs", "get", "422") == {"invalid-query"}
    assert types("/jobs", "post", "400") == {"not-json"}
    assert types("/jobs", "post", "422") == {
        "invalid-request",
        "invalid-query",
        "idempotency-key-reused",
    }
    assert types("/dlq/reprocess", "post", "422") == {"invalid-request", "invalid-query"}


def test_the_sample_is_among_the_data_that_the_local_stack_has(document: dict[str, Any]) -> None:
    (sample,) = document["components"]["schemas"]["JobRequest"]["examples"]
    held = {(price.symbol, int(f"{price.day:%Y%m%d}")) for price in read_prices()}
    for wanted in sample["inputs"]:
        assert (wanted["indexKey"], wanted["effectiveDate"]) in held
        assert wanted["asofindicator"] == ASOF_INDICATOR


async def test_the_page_needs_nothing_from_elsewhere(client: httpx.AsyncClient) -> None:
    assert (await client.get("/")).headers["location"] == "/docs"
    assert (await client.get("/api/")).headers["location"] == "/api/docs"
    for path in ("/docs", "/docs/page.js", "/docs/page.css"):
        response = await client.get(path)
        assert "://" not in response.text
        assert "script-src 'self'" in response.headers["content-security-policy"]


async def test_answers_of_the_lifecycle_are_what_the_document_says(
    api: Api, client: httpx.AsyncClient, work: Work, document: dict[str, Any]
) -> None:
    job = await submit(client, notes(10))
    check(document, "InputHistory", (await client.get(f"/jobs/{job}/inputs/0")).json())
    await work.run(by_ordinal)
    for ordinal in range(5):
        shown = await client.get(f"/jobs/{job}/inputs/{ordinal}")
        check(document, "InputHistory", shown.json())
        for query in ({}, {"ordinal": ordinal}):
            told = await client.get(f"/jobs/{job}/timeline", params=query)
            check(document, "Timeline", told.json())
            correlation = await client.get(f"/correlations/{told.json()['correlationId']}")
            check(document, "Correlation", correlation.json())
    check(document, "DeadLetterPage", (await client.get("/dlq")).json())
    check(document, "CausePage", (await client.get("/dlq/groups")).json())
    dry = await client.post("/dlq/reprocess", json={"all": True, "dryRun": True})
    check(document, "DryRun", dry.json())
    for accepted in (
        await client.post(f"/dlq/{job}/0/reprocess"),
        await client.post("/dlq/reprocess", json={"jobId": job}),
        await client.post(f"/jobs/{job}/reprocess"),
    ):
        check(document, "RedriveAccepted", accepted.json())
        check(document, "Redrive", (await client.get(accepted.headers["location"])).json())
    for move in ("pause", "resume", "cancel"):
        check(document, "Moved", (await client.post(f"/jobs/{job}/{move}")).json())
    check(document, "ProblemDocument", (await client.post(f"/jobs/{job}/pause")).json())
    await work.rows(
        "INSERT INTO parked_message (queue, message_id, reason, body, attributes)"
        " VALUES ('dlq', 'm', 'no JSON', '?', '{}') RETURNING id"
    )
    await submit(client, notes(1))
    await work.rows("UPDATE outbox SET state = 'PARKED', parked_reason = 'too large' RETURNING id")
    async with await api.client(owner="ops", role="admin") as admin:
        page = (await admin.get("/parked")).json()
        check(document, "ParkedPage", page)
        message, entry = (f"/parked/messages/{page['items'][0]['id']}", page["items"][-1])
        check(document, "MessageResolved", (await admin.post(f"{message}/dismiss")).json())
        released = await admin.post(f"/parked/entries/{entry['id']}/reprocess")
        check(document, "EntryReleased", released.json())
        for model, body in ("EntriesCounted", {"dryRun": True}), ("EntriesReleased", {}):
            several = await admin.post("/parked/entries/reprocess", json={"all": True} | body)
            check(document, model, several.json())


def test_every_request_body_has_an_example_that_fits(document: dict[str, Any]) -> None:
    for item in document["paths"].values():
        for about in item.values():
            if "requestBody" in about:
                reference = about["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                name = reference.rsplit("/", 1)[-1]
                check(document, name, document["components"]["schemas"][name]["examples"][0])
