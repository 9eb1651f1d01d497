import re
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from sqlalchemy import text
from structlog.testing import capture_logs

from api.edge import Edge
from infra.database import Database
from infra.telemetry.exposition import Exposition
from infra.telemetry.instruments import Instruments
from infra.telemetry.logs import CORRELATION_ID
from infra.telemetry.metrics import Metrics
from tests.integration.api.conftest import ABC, Api, application
from tests.platform import settings_for
from tests.spans import Spans


def anonymous(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://haulage")


async def test_every_address_is_served_under_the_prefix_too(client: httpx.AsyncClient) -> None:
    accepted = await client.post("/api/jobs", json={"inputs": [ABC]})
    assert accepted.status_code == 202
    address = accepted.headers["location"]
    assert address == f"/api/jobs/{accepted.json()['jobId']}"
    document = (await client.get(address)).json()
    assert document["links"]["inputs"] == f"{address}/inputs"
    for path in ("/jobs", "/livez", "/readyz", "/openapi.json", "/docs", "/docs/page.js"):
        assert (await client.get(path)).status_code == 200
        assert (await client.get(f"/api{path}")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/jobs/", 404),
        ("GET", "/api/nothing", 404),
        ("GET", "/api", 404),
        ("DELETE", "/jobs", 405),
        ("POST", "/jobs/J20260110_000777", 405),
        ("BREW", "/docs", 405),
        ("GET", "/jobs/J20260110_000777", 404),
    ],
)
async def test_refusals_are_problems_with_the_correlation_id_and_security_headers(
    client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    response = await client.request(method, path, headers={"X-Correlation-Id": "c-7"})
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status
    assert response.json()["correlationId"] == response.headers["x-correlation-id"] == "c-7"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert ("allow" in response.headers) == (status == 405)


async def test_a_method_that_http_does_not_define_makes_no_series_of_its_own() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 405, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    spans, exposition = Spans(), Exposition()
    provider = MeterProvider([exposition.reader], shutdown_on_exit=False)
    instruments = Instruments(spans.tracing, Metrics(provider.get_meter("test")), exposition)
    async with anonymous(Edge(app, instruments)) as client:
        for method in ("PURGE", "MKCOL", "PATCH"):
            await client.request(method, "/jobs")
    text = exposition.text().decode()
    assert set(re.findall(r'http_request_method="(\w+)"', text)) == {"_OTHER", "PATCH"}
    found = [(span.name, dict(span.attributes or {})) for span in spans.all()]
    assert [name for name, _ in found] == ["HTTP", "HTTP", "PATCH"]
    assert found[0][1]["http.request.method"] == "_OTHER"
    assert found[0][1]["http.request.method_original"] == "PURGE"


async def test_options_and_head_are_answered(client: httpx.AsyncClient) -> None:
    options = await client.options("/jobs")
    assert (options.status_code, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")
    assert (await client.head("/jobs")).status_code == 200


async def test_a_correlation_id_that_cannot_be_kept_is_replaced(client: httpx.AsyncClient) -> None:
    for unfit in ("x" * 16_000, "a b", "a;b"):
        response = await client.get("/jobs", headers={"X-Correlation-Id": unfit})
        returned = response.headers["x-correlation-id"]
        assert returned != unfit
        assert CORRELATION_ID.fullmatch(returned)


async def test_one_event_tells_everything_of_a_request_and_checks_tell_nothing(
    client: httpx.AsyncClient,
) -> None:
    with capture_logs() as events:
        response = await client.post("/jobs", json={"inputs": [ABC]})
        await client.get("/livez")
        await client.get("/readyz")
    (event,) = [event for event in events if event["event"] == "http.request"]
    assert event["method"] == "POST"
    assert event["route"] == "/jobs"
    assert event["status"] == 202
    assert event["owner"] == "acme"
    assert event["job"] == response.json()["jobId"]
    assert event["inputs"] == 1
    assert event["response_bytes"] == len(response.content)
    assert event["request_bytes"] > 0
    assert event["duration_ms"] > 0


async def test_an_unexpected_error_becomes_a_500_that_the_log_explains() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    async with anonymous(Edge(broken)) as client:
        with capture_logs() as events:
            response = await client.get("/", headers={"X-Correlation-Id": "c-9"})
    assert response.status_code == 500
    assert response.json()["type"] == "urn:haulage:problem:internal"
    assert response.json()["correlationId"] == "c-9"
    assert "Zero" not in response.text
    (event,) = [event for event in events if event["event"] == "http.unexpected"]
    assert isinstance(event["exc_info"], ZeroDivisionError)


async def test_a_database_that_is_away_is_a_503_that_says_when_to_come_back(
    api: Api, client: httpx.AsyncClient, database: Database
) -> None:
    key = client.headers["authorization"]
    away = "postgresql://nobody@127.0.0.1:1/none"
    async with Database.from_settings(settings_for(away), name="test") as nowhere:
        async with anonymous(application(nowhere, away)) as other:
            for answer in (
                await other.get("/jobs", headers={"Authorization": key}),
                await other.post("/jobs", json={}, headers={"Authorization": key}),
            ):
                assert answer.status_code == 503
                assert int(answer.headers["retry-after"]) > 0
                assert answer.json()["type"] == "urn:haulage:problem:unavailable"
            assert (await other.get("/readyz")).status_code == 503
            assert (await other.get("/livez")).status_code == 200


async def test_lost_connections_cost_one_503_each_at_most(
    client: httpx.AsyncClient, database: Database
) -> None:
    assert (await client.get("/jobs")).status_code == 200
    await database.fetch(
        text(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    )
    answers = [(await client.get("/jobs")).status_code for _ in range(4)]
    assert set(answers) <= {200, 503}
    assert answers[-1] == 200
