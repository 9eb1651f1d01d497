"""Telemetry over both protocols, and a collector that never answers: work ends all the same."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from localstack.ports import free_port
from tests.stubs.otlp import collecting

CHECKOUT = Path(__file__).resolve().parent.parent.parent
SPANS = 5_000
# More than the queue holds: what overflows is dropped, and nobody waits.
WORKING = f"""
import sys
from infra.process import run
from infra.telemetry import names
from infra.telemetry.opening import open_instruments
from schema.message import Trace

async def serve(settings, worker, stop):
    trace = Trace("request", "00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    async with open_instruments(
        settings, process="working", worker=worker, is_exposed=False
    ) as instruments:
        for _ in range({SPANS}):
            with instruments.tracing.one(names.PROCESS, trace):
                instruments.metrics.lease_lost("export")

sys.exit(run("working", serve))
"""
# Has something to send again and again, until it is told to stop.
TELLING = """
import asyncio, sys
from infra.process import run
from infra.telemetry import names
from infra.telemetry.opening import open_instruments
from schema.message import Trace

async def serve(settings, worker, stop):
    trace = Trace("request", "00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    async with open_instruments(
        settings, process="telling", worker=worker, is_exposed=False
    ) as instruments:
        while not stop.is_set():
            with instruments.tracing.one(names.PROCESS, trace):
                instruments.metrics.lease_lost("export")
            await asyncio.sleep(0.02)

sys.exit(run("telling", serve))
"""
SETTINGS = {
    "DATABASE_URL": "postgresql://127.0.0.1:1/nowhere",
    "CONSUMER_MODE": "outbox",
    "HAULAGE_LOG_FORMAT": "json",
    "NO_PROXY": "127.0.0.1",
}


def worked(script: str = WORKING, **otel: str) -> tuple[list[dict[str, Any]], str]:
    """Run the process to its end; give its log lines and its standard output."""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**SETTINGS, **otel}, cwd=CHECKOUT,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2_000:]
    return [json.loads(line) for line in ended.stderr.splitlines()], ended.stdout


@contextmanager
def black_hole() -> Iterator[str]:
    """Listen, and never accept: connections are made, and nothing ever comes of them."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_process_ends_although_its_collector_never_answers(protocol: str) -> None:
    with black_hole() as url:
        lines, _ = worked(OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
    events = [line["event"] for line in lines]
    assert events[-1] == "process.stopped"
    assert "telemetry.not_sent" in events
    assert len(lines) < 30, "dropping thousands of spans is not said thousands of times"


def test_spans_are_sent_over_grpc_as_well() -> None:
    received: list[str] = []

    class Collector(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - as the service has it
            received.extend(
                span.name
                for of_resource in request.resource_spans
                for of_scope in of_resource.scope_spans
                for span in of_scope.spans
            )
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(2))
    register: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    register(Collector(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        worked(
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"http://127.0.0.1:{port}",
            OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
            OTEL_BSP_MAX_QUEUE_SIZE=str(2 * SPANS),
            # Empty is not set, as templates of deployments have it.
            OTEL_EXPORTER_OTLP_TIMEOUT="",
            OTEL_EXPORTER_OTLP_COMPRESSION="",
        )
    finally:
        server.stop(None).wait()
    assert received == ["process outbox"] * SPANS


@contextmanager
def collecting_over_grpc(port: int) -> Iterator[None]:
    class Traces(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - as the service has it
            return trace_service_pb2.ExportTraceServiceResponse()

    class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
            return metrics_service_pb2.ExportMetricsServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(2))
    register_traces: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    register_traces(Traces(), server)
    register_metrics: Any = metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server
    register_metrics(Metrics(), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    yield
    server.stop(None).wait()


@pytest.mark.parametrize(
    ("protocol", "collector"),
    [("http/protobuf", collecting), ("grpc", collecting_over_grpc)],
    ids=["http", "grpc"],
)
def test_a_collector_that_is_away_is_told_once_for_each_exporter_and_so_is_its_return(
    protocol: str, collector: Callable[[int], AbstractContextManager[object]]
) -> None:
    port = free_port()
    otel = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_METRIC_EXPORT_INTERVAL": "50",
    }
    lines: list[dict[str, Any]] = []

    def told(event: str) -> set[str]:
        return {line["exporter"] for line in lines if line["event"] == event}

    with subprocess.Popen(
        [sys.executable, "-c", TELLING],
        env={**SETTINGS, **otel}, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        # Without it, an event that does not come would be waited for for ever.
        limit = threading.Timer(60, process.kill)
        limit.start()
        written = map(json.loads, process.stderr)
        while told("telemetry.away") != {"traces", "metrics"}:
            lines.append(next(written))
        with collector(port):
            while told("telemetry.recovered") != {"traces", "metrics"}:
                lines.append(next(written))
            process.send_signal(signal.SIGTERM)
            lines += written
        limit.cancel()
    assert process.returncode == 0
    events = [line["event"] for line in lines]
    assert (events.count("telemetry.away"), events.count("telemetry.recovered")) == (2, 2)
    assert [event for event in events if not re.fullmatch(r"[a-z]+\.[a-z_]+", event)] == []
    for line in lines:
        if line["event"] == "telemetry.away":
            assert line["level"] == "warning"
            assert "refused" in line["error"]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("OTEL_TRACES_SAMPLER", "foo", "OTEL_TRACES_SAMPLER"),
        ("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER", "nix", "OTEL_…"),
    ],
)
def test_a_setting_that_cannot_be_used_ends_the_process_at_its_start(
    name: str, value: str, told: str
) -> None:
    with black_hole() as url:
        ended = subprocess.run(
            [sys.executable, "-c", WORKING],
            env={**SETTINGS, "OTEL_EXPORTER_OTLP_ENDPOINT": url, name: value}, cwd=CHECKOUT,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    last = json.loads(ended.stderr.splitlines()[-1])
    assert (ended.returncode, last["event"]) == (78, "process.misconfigured")
    assert told in last["error"]


def test_what_a_client_makes_long_is_cut_in_a_span_and_nobody_is_told() -> None:
    long = "(names.PROCESS, trace, attributes={names.URL_PATH: '/' * 9_000})"
    script = WORKING.replace("(names.PROCESS, trace)", long).replace(str(SPANS), "3")
    with collecting() as collector:
        lines, _ = worked(script, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    assert [span.attributes["url.path"] for span in collector.spans()] == ["/" * 1_000] * 3
    assert [line["event"] for line in lines] == [
        "process.started", "telemetry.opened", "process.stopped",
    ]  # fmt: skip


def test_lines_for_cloudwatch_go_to_standard_output_at_the_latest_at_the_end() -> None:
    _, output = worked(HAULAGE_EMF="true")
    (line,) = [json.loads(line) for line in output.splitlines()]
    assert (line["service"], line["kind"], line["leases.lost"]) == (
        "haulage-working",
        "export",
        SPANS,
    )


def test_without_an_endpoint_no_sdk_is_imported() -> None:
    script = WORKING.replace("sys.exit(run", "code = run").rsplit(")", 1)[0]
    script += (
        "; sys.exit(code or any(name.startswith('opentelemetry.sdk') for name in sys.modules))"
    )
    environment = {"DATABASE_URL": "postgresql://127.0.0.1:1/nowhere", "CONSUMER_MODE": "outbox"}
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=environment, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2_000:]
