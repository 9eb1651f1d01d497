"""An OpenTelemetry collector that keeps what it is sent (OTLP over HTTP, protobuf)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from gzip import decompress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, cast

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


@dataclass(frozen=True, slots=True)
class Received:
    """A span as it arrived; ids are hexadecimal, no parent is an empty text."""

    service: str
    instance: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    events: list[tuple[str, dict[str, Any]]]
    failed: bool
    began_ns: int
    ended_ns: int

    @property
    def step(self) -> str:
        return self.name.partition(" ")[0]


@dataclass
class Collector:
    """What was received so far."""

    url: str
    headers: list[dict[str, str]] = field(default_factory=list)
    metrics: list[ExportMetricsServiceRequest] = field(default_factory=list)
    _spans: list[Received] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def spans(self, step: str | None = None) -> list[Received]:
        with self._lock:
            return [span for span in self._spans if step in (None, span.step)]

    def take(self, path: str, headers: dict[str, str], body: bytes) -> bytes:
        with self._lock:
            self.headers.append(headers)
            if path == "/v1/traces":
                self._spans += _spans(ExportTraceServiceRequest.FromString(body))
                return bytes(ExportTraceServiceResponse().SerializeToString())
            assert path == "/v1/metrics", path
            self.metrics.append(ExportMetricsServiceRequest.FromString(body))
            return bytes(ExportMetricsServiceResponse().SerializeToString())


def _spans(request: ExportTraceServiceRequest) -> Iterator[Received]:
    for of_resource in request.resource_spans:
        resource = _attributes(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield Received(
                    service=resource["service.name"],
                    instance=resource["service.instance.id"],
                    name=span.name,
                    kind=span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    attributes=_attributes(span.attributes),
                    links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                    events=[(event.name, _attributes(event.attributes)) for event in span.events],
                    failed=span.status.code == span.status.STATUS_CODE_ERROR,
                    began_ns=span.start_time_unix_nano,
                    ended_ns=span.end_time_unix_nano,
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in cast("list[KeyValue]", pairs)}


def _value(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    if which == "array_value":
        return [_value(member) for member in value.array_value.values]
    return getattr(value, which) if which else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    collector: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = decompress(body)
        answer = self.collector.take(self.path, dict(self.headers), body)
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    """Give a collector that answers inside the block, on any free port unless one is given."""

    class Handler(_Handler):
        pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.daemon_threads = True
        Handler.collector = collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever, name="collector")
        thread.start()
        yield collector
        server.shutdown()
        thread.join()
