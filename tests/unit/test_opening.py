"""Telemetry over both protocols, and a collector that never answers: work ends all the same."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

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


def worked(**otel: str) -> tuple[list[dict[str, Any]], str]:
    """Run the process to its end; give its log lines and its standard output."""
    environment = {
        "DATABASE_URL": "postgresql://127.0.0.1:1/nowhere",
        "CONSUMER_MODE": "outbox",
        "HAULAGE_LOG_FORMAT": "json",
        "NO_PROXY": "127.0.0.1",
        **otel,
    }
    ended = subprocess.run(
        [sys.executable, "-c", WORKING],
        env=environment, cwd=CHECKOUT, capture_output=True, text=True, timeout=120, check=False,
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
        )
    finally:
        server.stop(None).wait()
    assert received == ["process outbox"] * SPANS


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
