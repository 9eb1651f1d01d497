"""Opens the telemetry of a process, as OpenTelemetry's own settings say, and closes it in time.

What is sent waits in a bounded queue and is sent by a thread: a collector that is slow or away
costs what it was to be told, never work. What is not asked for is not even imported.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

import structlog

from infra.telemetry import names
from infra.telemetry.instruments import SILENT, Instruments
from infra.telemetry.metrics import Metrics
from infra.telemetry.otel_settings import OtelSettings
from infra.telemetry.tracing import Tracing
from schema.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

    from infra.settings import Settings
    from infra.telemetry.exporting import ToldSpanExporter
    from infra.telemetry.otel_settings import Protocol

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# They make a record for every span that finds the queue full, and for every value that is cut: why
# the queue is full, the exporter says, and how long a value is, the client decides.
_CHATTY = ("opentelemetry.sdk._shared_internal", "opentelemetry.attributes")
_LENGTH_LIMITS = ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT")
_ATTRIBUTE_CHARACTERS = 1_000
# The process is about to end, and has seconds for everything.
_LAST_SECONDS = 3.0


@asynccontextmanager
async def open_instruments(
    settings: Settings, *, process: str, worker: str, is_exposed: bool
) -> AsyncIterator[Instruments]:
    """Give the instruments of this process; what they hold is sent before the block is left.

    Whatever cannot be sent within three seconds then is lost. ``is_exposed`` asks for a page of
    metrics.
    """
    _unset_empty()
    with _settings_of_sdk():
        otel = OtelSettings.from_environment(os.environ)
    is_exposed = is_exposed and not otel.is_disabled
    is_written = settings.emf and not otel.is_disabled
    if not (otel.traces or otel.metrics or is_exposed or is_written):
        yield SILENT
        return
    resource = _resource(process, worker)
    tracing, metrics, exposition = SILENT.tracing, SILENT.metrics, None
    closing: list[Callable[[], object]] = []
    with _settings_of_sdk():
        if otel.traces:
            exporter = _span_exporter(otel.traces)
            tracer_provider = _tracer_provider(exporter, resource)
            closing.append(tracer_provider.shutdown)
            tracing = _tracing(tracer_provider, settings, is_wanted=exporter.wants_spans)
        readers: list[MetricReader] = []
        if otel.metrics:
            readers.append(_otlp_reader(otel.metrics))
        if is_written:
            readers.append(_emf_reader(settings.emf_interval_seconds))
        if is_exposed:
            from infra.telemetry.exposition import Exposition

            exposition = Exposition()
            readers.append(exposition.reader)
        if readers:
            meter_provider = _meter_provider(readers, resource)
            closing.append(meter_provider.shutdown)
            metrics = Metrics(meter_provider.get_meter(names.SCOPE))
    log.info(
        "telemetry.opened",
        traces=otel.traces,
        metrics=otel.metrics,
        emf=is_written,
        prometheus=is_exposed,
    )
    try:
        yield Instruments(tracing, metrics, exposition)
    finally:
        await _within(_LAST_SECONDS, closing)


def _unset_empty() -> None:
    """Take an empty variable for one that is not set; not all of the SDK does."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        if not os.environ[name].strip():
            del os.environ[name]


@contextmanager
def _settings_of_sdk() -> Iterator[None]:
    """Refuse what the SDK refuses: only its settings can be at fault."""
    try:
        yield
    except Misconfigured:
        raise
    except Exception as error:
        told = " ".join(str(error).split())
        raise Misconfigured(f"a setting of OpenTelemetry (OTEL_…): {told}") from error


def _tracing(
    provider: TracerProvider, settings: Settings, *, is_wanted: Callable[[], bool]
) -> Tracing:
    tracing = Tracing(
        provider.get_tracer(names.SCOPE),
        system="haulage_outbox",
        destination="outbox",
        each_run=settings.trace_runs,
        is_wanted=is_wanted,
    )
    if settings.consumer_mode == "sqs-consumer" and settings.queue_url:
        return tracing.to_sqs(settings.queue_url)
    return tracing


def _quieten_grpc() -> None:
    """Have its core write no notes to standard error, as when a child process is started."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


# ruff: noqa: PLC0415 - each of these costs a good part of a second, and most are not needed
def _span_exporter(protocol: Protocol) -> ToldSpanExporter:
    from infra.telemetry.exporting import ToldSpanExporter, take_over_logs

    exporter: SpanExporter
    if protocol == "grpc":
        _quieten_grpc()
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as over_grpc

        exporter = over_grpc.OTLPSpanExporter()
    else:
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as over_http

        from infra.telemetry.collecting import traces_session

        exporter = over_http.OTLPSpanExporter(session=traces_session())
    take_over_logs()
    return ToldSpanExporter(exporter)


def _tracer_provider(exporter: ToldSpanExporter, resource: Resource) -> TracerProvider:
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from infra.telemetry.exporting import Probes

    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(logging.ERROR)
    # What a client sends may stand in an attribute, and is as long as the client likes.
    is_limited = any(os.environ.get(name) for name in _LENGTH_LIMITS)
    limits = SpanLimits(max_span_attribute_length=None if is_limited else _ATTRIBUTE_CHARACTERS)
    # By itself the SDK would wait at the exit for a collector that never answers.
    provider = TracerProvider(resource=resource, span_limits=limits, shutdown_on_exit=False)
    provider.add_span_processor(Probes(exporter))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _meter_provider(readers: Sequence[MetricReader], resource: Resource) -> MeterProvider:
    from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider

    # Exemplars would double what a measurement costs, where they were not asked for.
    is_asked = bool(os.environ.get("OTEL_METRICS_EXEMPLAR_FILTER"))
    return MeterProvider(
        readers,
        resource,
        exemplar_filter=None if is_asked else AlwaysOffExemplarFilter(),
        shutdown_on_exit=False,
    )


def _otlp_reader(protocol: Protocol) -> MetricReader:
    from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader

    from infra.telemetry.exporting import ToldMetricExporter, take_over_logs

    exporter: MetricExporter
    if protocol == "grpc":
        _quieten_grpc()
        from opentelemetry.exporter.otlp.proto.grpc import metric_exporter as over_grpc

        exporter = over_grpc.OTLPMetricExporter()
    else:
        from opentelemetry.exporter.otlp.proto.http import metric_exporter as over_http

        from infra.telemetry.collecting import metrics_session

        exporter = over_http.OTLPMetricExporter(session=metrics_session())
    take_over_logs()
    return PeriodicExportingMetricReader(ToldMetricExporter(exporter))


def _emf_reader(interval_seconds: float) -> MetricReader:
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    from infra.telemetry.emf import EmfExporter
    from infra.telemetry.exporting import ToldMetricExporter

    exporter = ToldMetricExporter(EmfExporter(sys.stdout), signal="emf")
    return PeriodicExportingMetricReader(exporter, interval_seconds * 1_000)


def _resource(process: str, worker: str) -> Resource:
    """Name the process; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES have the last word."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    return Resource.create(
        {
            "service.name": f"{names.SERVICE_NAMESPACE}-{process}",
            "service.namespace": names.SERVICE_NAMESPACE,
            "service.instance.id": worker,
            **OTELResourceDetector().detect().attributes,
        }
    )


async def _within(seconds: float, closing: Sequence[Callable[[], object]]) -> None:
    """Close all at once, in threads that end with the process, whatever they wait for."""
    loop = asyncio.get_running_loop()
    closed = [asyncio.Event() for _ in closing]

    def work(close: Callable[[], object], done: asyncio.Event) -> None:
        try:
            close()
        finally:
            with suppress(RuntimeError):  # the loop is closed already: nobody waits any more
                loop.call_soon_threadsafe(done.set)

    for close, done in zip(closing, closed, strict=True):
        threading.Thread(
            target=work, args=(close, done), name="telemetry close", daemon=True
        ).start()
    try:
        async with asyncio.timeout(seconds):
            for done in closed:
                await done.wait()
    except TimeoutError:
        log.warning("telemetry.not_sent", waited_seconds=seconds)
