"""Exporters whose collector is away: what is told, what is still worth making, and no traceback."""

import asyncio
import io
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

import pytest
import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import DEFAULT_ON

from infra.settings import Settings
from infra.telemetry import names
from infra.telemetry.collecting import traces_session
from infra.telemetry.emf import EmfExporter
from infra.telemetry.exporting import (
    Probes,
    ToldMetricExporter,
    ToldSpanExporter,
    take_over_logs,
)
from infra.telemetry.opening import open_instruments
from infra.telemetry.otel_settings import OtelSettings
from infra.telemetry.tracing import Tracing, continued
from schema.errors import Misconfigured
from schema.message import Trace

TRACE = Trace("request", f"00-{'a' * 32}-{'b' * 16}-01")


class Collector(SpanExporter):
    """Takes spans, refuses them or fails, as it is told."""

    def __init__(self) -> None:
        self.answer: SpanExportResult | Exception = SpanExportResult.SUCCESS
        self.asked = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked += len(spans)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [SpanExportResult.FAILURE, OSError("no certificate")])
def test_while_the_collector_is_away_one_span_in_a_while_asks_whether_it_is_back(
    answer: SpanExportResult | Exception,
) -> None:
    collector = Collector()
    now = 1_000.0
    exporter = ToldSpanExporter(collector, clock=lambda: now)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Probes(exporter))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(provider.get_tracer("test"), is_wanted=exporter.wants_spans)

    def work(times: int) -> int:
        before = collector.asked
        for _ in range(times):
            with tracing.one(names.PROCESS, TRACE) as span:
                carried = continued(TRACE, span)
            # The trace goes on, sampled as it was, whether or not there is a span of ours in it.
            assert (carried.traceparent or "").endswith("-01")
            assert (carried.traceparent or "").split("-")[1] == "a" * 32
        return collector.asked - before

    with structlog.testing.capture_logs() as told:
        assert work(3) == 3
        collector.answer = answer
        assert work(100) == 1
        now += 1.9
        assert work(100) == 0
        now += 0.2
        assert work(100) == 1
        collector.answer = SpanExportResult.SUCCESS
        now += 2.1
        assert work(100) == 100
    assert [line["event"] for line in told] == ["telemetry.away", "telemetry.recovered"]
    assert told[1]["after_failures"] == 2


def test_a_credential_provider_keeps_what_signs_its_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "haulage_signing.py").write_text(
        "import requests\n"
        "class Signing(requests.adapters.HTTPAdapter): ...\n"
        "def session():\n"
        "    session = requests.Session()\n"
        "    session.mount('https://', Signing())\n"
        "    return session\n"
    )
    metadata = tmp_path / "haulage_signing-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: haulage_signing\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[opentelemetry_otlp_credential_provider]\nsigning = haulage_signing:session\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER"
    monkeypatch.setenv(name, "signing")
    adapters = {key: type(one).__name__ for key, one in traces_session().adapters.items()}
    assert adapters["https://"] == "Signing"
    monkeypatch.delenv(name)
    bounded = {key: type(one).__name__ for key, one in traces_session().adapters.items()}
    assert bounded["http://"] == bounded["https://"] == adapters["http://"] != "HTTPAdapter"


def test_a_span_that_the_sampler_drops_asks_nobody() -> None:
    collector = Collector()
    collector.answer = SpanExportResult.FAILURE
    exporter = ToldSpanExporter(collector, clock=lambda: 1_000.0)
    provider = TracerProvider(sampler=DEFAULT_ON, shutdown_on_exit=False)
    provider.add_span_processor(Probes(exporter))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(provider.get_tracer("test"), is_wanted=exporter.wants_spans)
    exporter.export([])
    dropped = Trace("request", f"00-{'a' * 32}-{'b' * 16}-00")
    for trace in (*[dropped] * 10, TRACE, TRACE):
        with tracing.one(names.PROCESS, trace):
            pass
    assert collector.asked == 1


def test_a_span_within_another_is_made_only_where_that_one_is() -> None:
    collector = Collector()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(collector))
    is_wanted = True
    tracing = Tracing(provider.get_tracer("test"), is_wanted=lambda: is_wanted)
    with tracing.serving(TRACE, name="POST", attributes={}):
        is_wanted = False
        with tracing.inside(names.SUBMIT, TRACE):
            pass
    assert collector.asked == 2
    with tracing.serving(TRACE, name="POST", attributes={}), tracing.inside(names.SUBMIT, TRACE):
        is_wanted = True
    assert collector.asked == 2


@contextmanager
def answering(first: bytes, then: bytes, every_seconds: float) -> Iterator[str]:
    """Answer every connection with ``first``, and with ``then`` for as long as it is taken."""

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            try:
                self.request.recv(65_536)
                self.wfile.write(first)
                while then:
                    is_over.wait(every_seconds)
                    if is_over.is_set():
                        return
                    self.wfile.write(then)
            except OSError:
                pass  # the client has hung up, as it should

    is_over = threading.Event()
    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
        is_over.set()
        server.shutdown()
        thread.join()


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("first", "then", "every_seconds", "told"),
    [
        (b"HTTP/1.1 307 x\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", b"", 0, "answered 307"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", 0, None),
        (OK + b"Content-Length: 0\r\n\r\n", b"", 0, None),
        (OK + b"\r\n", b"x" * 65_536, 0, "is no collector"),
        (OK + b"Content-Encoding: gzip\r\n\r\n", b"x" * 65_536, 0, "is no collector"),
        (OK + b"Content-Length: 100\r\n\r\n", b"x", 0.1, "no whole answer within 0.5 s"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0", 0.1, "no whole answer within 0.5 s"),
        (OK + b"X: ", b"x", 0.1, "no whole answer within 0.5 s"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01, "no whole"),
        (b"HTTP/1.1 401 No\r\n\r\n", b"x" * 65_536, 0, "No"),
    ],
)
def test_only_a_whole_short_answer_of_success_in_time_is_one(
    first: bytes, then: bytes, every_seconds: float, told: str | None
) -> None:
    take_over_logs()
    with (
        answering(first, then, every_seconds) as url,
        traces_session() as session,
        structlog.testing.capture_logs() as lines,
    ):
        session.trust_env = False
        exporter = ToldSpanExporter(OTLPSpanExporter(url, timeout=0.5, session=session))
        began = time.monotonic()
        result = exporter.export([])
    assert time.monotonic() - began < 5
    assert (result is SpanExportResult.SUCCESS) == (told is None)
    errors = [line["error"] for line in lines]
    assert len(errors) == (told is not None)
    assert all((told or "") in error for error in errors), errors


def test_metrics_that_cannot_be_written_are_told_of_once() -> None:
    read, write = os.pipe()
    os.close(read)
    with io.TextIOWrapper(io.FileIO(write, "w"), write_through=True) as out:
        reader = PeriodicExportingMetricReader(
            ToldMetricExporter(EmfExporter(out), signal="emf"), export_interval_millis=3_600_000
        )
        provider = MeterProvider([reader], shutdown_on_exit=False)
        provider.get_meter("test").create_counter("haulage.test").add(1)
        with structlog.testing.capture_logs() as told:
            for _ in range(3):
                provider.force_flush()
    ((event, exporter, error),) = [(it["event"], it["exporter"], it["error"]) for it in told]
    assert (event, exporter) == ("telemetry.away", "emf")
    assert "BrokenPipeError" in error


@pytest.mark.parametrize(
    "setting",
    [
        "OTEL_EXPORTER_OTLP_ENDPOINT=http://[::1",
        "OTEL_EXPORTER_OTLP_ENDPOINT=localhost:4318",
        "OTEL_EXPORTER_OTLP_ENDPOINT=ftp://localhost",
        "OTEL_EXPORTER_OTLP_ENDPOINT=http://",
        "OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:x",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://localhost/v1/metrics?api_key=S3CRET",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://u:S3CRET@localhost",
        "OTEL_BSP_MAX_QUEUE_SIZE=0",
        "OTEL_METRIC_EXPORT_INTERVAL=-5",
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT=x",
        "OTEL_METRICS_EXEMPLAR_FILTER=some",
    ],
)
def test_what_the_sdk_refuses_is_a_setting_at_fault(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _, value = setting.partition("=")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv(name, value)
    given = {"database_url": "postgresql://127.0.0.1:1/nowhere", "consumer_mode": "outbox"}
    settings = Settings.model_validate(given)

    async def serve() -> None:
        async with open_instruments(settings, process="test", worker="w", is_exposed=False):
            pass

    with pytest.raises(Misconfigured, match="OTEL_") as raised:
        asyncio.run(serve())
    assert "S3CRET" not in str(raised.value)


@pytest.mark.parametrize("endpoint", ["localhost:4317", "http://localhost:4317", "https://[::1]"])
def test_over_grpc_an_address_may_lack_its_scheme(endpoint: str) -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    assert OtelSettings.from_environment(environment).traces == "grpc"
