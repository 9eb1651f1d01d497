"""One request, its retry and its redelivery are one trace, through real processes."""

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from localstack import children
from localstack.interruption import Interruption
from tests.acceptance.fleet import CHECKOUT, PATIENCE_SECONDS, Member
from tests.acceptance.site import Site
from tests.platform import eventually
from tests.stubs.otlp import Collector, Received, collecting

pytestmark = pytest.mark.acceptance

TRACE_ID, CLIENT_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CORRELATION_ID = "order-42"
RETRIED, GATED = 1, 2
KINDS = "tests.acceptance.ledger:LEDGER_APART"
MAKERS = {
    "POST": "haulage-api",
    "submit": "haulage-api",
    "relay": "haulage-dispatcher",
    "repair": "haulage-dispatcher",
    "receive": "haulage-consumer",
    "process": "haulage-consumer",
    "settle": "haulage-consumer",
}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


async def received(collector: Collector, step: str, many: int, **attributes: Any) -> list[Received]:
    """Wait for so many spans of a step that have these attributes."""
    found: list[Received] = []

    async def are_there() -> bool:
        found[:] = [
            span
            for span in collector.spans(step)
            if all(
                span.attributes.get(f"haulage.{name.replace('__', '.')}") == value
                for name, value in attributes.items()
            )
        ]
        return len(found) >= many

    await eventually(are_there, timeout_seconds=PATIENCE_SECONDS, pause_seconds=0.05)
    return found


async def submit(api: Member, key: str) -> str:
    inputs = [
        {"number": 0},
        {"number": RETRIED, "failures": 1},
        {"number": GATED, "gated": True},
    ]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{api.port}") as client:
        answer = await client.post(
            "/jobs",
            json={"kind": "ledger-apart", "inputs": inputs},
            headers={
                "Authorization": f"Bearer {key}",
                "X-Correlation-Id": CORRELATION_ID,
                "traceparent": f"00-{TRACE_ID}-{CLIENT_SPAN}-01",
            },
        )
    assert answer.status_code == 202, answer.text
    return str(answer.json()["jobId"])


async def test_a_request_its_retry_and_its_redelivery_are_one_connected_trace(
    site: Site, collector: Collector
) -> None:
    job_key = await killed_and_carried_on(site, collector)
    spans = collector.spans()
    assert {span.trace_id for span in spans} == {TRACE_ID}
    (server,), (submitted,) = collector.spans("POST"), collector.spans("submit")
    assert (server.name, server.kind, server.parent_id) == ("POST /jobs", "SERVER", CLIENT_SPAN)
    assert (submitted.kind, submitted.parent_id) == ("PRODUCER", server.span_id)
    assert server.attributes["http.response.status_code"] == 202
    steps = [span for span in spans if span not in (server, submitted)]
    assert bool(collector.spans("relay")) == (site.mode == "sqs")
    assert {span.parent_id for span in steps} == {submitted.span_id}
    linked = {span_id for span in spans for _, span_id in span.links}
    assert linked <= {span.span_id for span in spans}
    assert {headers["x-tenant"] for headers in collector.headers} == {"acme"}
    for span in spans:
        assert span.attributes["haulage.correlation_id"] == CORRELATION_ID, span.name
        assert span.service == MAKERS[span.step]
    _entries_are_linked(collector)
    _waits_are_told(site, collector.spans("process"))
    _lines_are_correlated(site, job_key)
    _metrics_arrived(collector)
    assert not await site.platform.rows("SELECT name FROM duty"), "who stops leaves its duty"


async def killed_and_carried_on(site: Site, collector: Collector) -> str:
    """Run a job whose second input fails once, and whose third loses its consumer."""
    telemetry = {
        "HAULAGE_KINDS": KINDS,
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=acme",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        # Who stops shows nothing any more of what it measured of the whole platform.
        "OTEL_METRIC_EXPORT_INTERVAL": "100",
        "HAULAGE_PROMETHEUS": "true",
        "HAULAGE_API_PROMETHEUS": "true",
    }
    start = site.fleet.start
    api, dispatcher = start("api", **telemetry), start("dispatcher", **telemetry)
    doomed = start("consumer", HAULAGE_LEASE_SECONDS=3, **telemetry)
    environment = {**children.inherited(), **site.fleet.environment}
    key = await asyncio.to_thread(
        children.key, "owner", None, environment, CHECKOUT, Interruption()
    )
    await site.fleet.ready(api, dispatcher, doomed)
    job_key = await submit(api, key)
    # Killed only when all is told of the inputs that it is not killed with.
    await received(collector, "process", 3, entry__ended="settled")
    doomed.send(signal.SIGKILL)
    await doomed.gone()
    heir = start("consumer", **telemetry)
    await received(collector, "repair", 1)
    site.ledger.open_gate()
    await received(collector, "process", 4, entry__ended="settled")
    if site.mode == "sqs":
        # The message of the one that was killed comes again, and finds nothing left to do.
        await received(collector, "receive", 1, message__duplicates=1)
    await _pages_are_served(api, dispatcher, heir)
    for member in (api, dispatcher, heir):
        member.send(signal.SIGTERM)
        await member.gone()
    return job_key


async def _pages_are_served(api: Member, dispatcher: Member, consumer: Member) -> None:
    """Each process shows its metrics, and the numbers by which consumers are scaled."""
    # What never happened stands at 0, so that the first time is an increase.
    of_its_own = {
        api.port: ("http_server_request_duration_seconds_count",),
        dispatcher.port: (
            'haulage_lapses_repaired_total{kind="ledger-apart"} 1.0',
            'haulage_lapses_repaired_total{kind="export"} 0.0',
        ),
        consumer.port: (
            'haulage_inputs_settled_total{kind="ledger-apart",outcome="SUCCEEDED"} 1.0',
            'haulage_inputs_died_total{kind="export"} 0.0',
        ),
    }
    async with httpx.AsyncClient() as client:
        for port, shown in of_its_own.items():
            metrics = await client.get(f"http://127.0.0.1:{port}/metrics")
            for metric in shown:
                assert metric in metrics.text
            assert metrics.headers["content-type"].startswith("text/plain")
            scaling = (await client.get(f"http://127.0.0.1:{port}/scaling")).json()
            assert scaling["readyEntries"] == 0
            assert ("thisConsumer" in scaling) == (port == consumer.port)


def _metrics_arrived(collector: Collector) -> None:
    told = {
        metric.name
        for request in collector.metrics
        for of_resource in request.resource_metrics
        for of_scope in of_resource.scope_metrics
        for metric in of_scope.metrics
    }
    assert {
        "haulage.inputs.settled",
        "haulage.inputs.retried",
        "haulage.lapses.repaired",
        "haulage.queue.wait",
        "haulage.run.time",
        "haulage.end_to_end.time",
        "haulage.database.pool.wait",
        "haulage.loop.lag",
        "haulage.backlog.inputs",
        "haulage.consumer.capacity",
        "http.server.request.duration",
    } <= told


def _entries_are_linked(collector: Collector) -> None:
    """The retry links to the attempt that failed, the redelivery to the repair."""
    processed = collector.spans("process")
    assert {span.kind for span in processed} == {"CONSUMER"}
    (first,) = (span for span in processed if span.failed)
    ((_, about),) = first.events
    assert about["error.type"] == "Fault"
    (repair,) = collector.spans("repair")
    for origin in (first, repair):
        (again,) = (span for span in processed if (TRACE_ID, origin.span_id) in span.links)
        assert again.attributes["haulage.input.attempt"] == 2
    settled = {span_id for span in collector.spans("settle") for _, span_id in span.links}
    assert settled == {span.span_id for span in processed}
    assert len(processed) == 4


def _waits_are_told(site: Site, processed: list[Received]) -> None:
    """Each entry says how long it lay where, and what carried it."""
    for span in processed:
        about = span.attributes
        assert 0 <= about["haulage.dwell.outbox_seconds"] < PATIENCE_SECONDS
        assert 0 <= about["haulage.dwell.consumer_seconds"] < PATIENCE_SECONDS
        expected = "aws_sqs" if site.mode == "sqs" else "haulage_outbox"
        assert about["messaging.system"] == expected
        assert about["messaging.operation.type"] == "process"
    if site.mode == "outbox":
        assert not any("haulage.dwell.queue_seconds" in span.attributes for span in processed)


def _lines_are_correlated(site: Site, job_key: str) -> None:
    """Every line that is about the job, or an entry of it, says whose it is."""
    many = 0
    for member in site.fleet.members:
        for line in member.lines():
            if "job" in line or "entry" in line:
                many += 1
                assert line.get("job", job_key) == job_key, line
                assert line["correlation_id"] == CORRELATION_ID, line
                if line["event"] in {"entry.done", "http.request", "reaper.repaired"}:
                    assert line["trace_id"] == TRACE_ID
            assert line.get("correlation_ids", [CORRELATION_ID]) == [CORRELATION_ID], line
    assert many > 6
