"""Opens the telemetry of a process, as OpenTelemetry's own settings say, and closes it in time.

What is sent waits in a bounded queue and is sent by a thread: a collector that is slow or away
costs spans, never work. The SDK and an exporter are imported only when there is an endpoint.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import structlog

from infra.telemetry import names
from infra.telemetry.instruments import SILENT, Instruments
from infra.telemetry.otel_settings import OtelSettings
from infra.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

    from infra.settings import Settings
    from infra.telemetry.otel_settings import Protocol

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# The process is about to end, and has seconds for everything.
_LAST_SECONDS = 3.0


@asynccontextmanager
async def open_instruments(
    settings: Settings, *, process: str, worker: str
) -> AsyncIterator[Instruments]:
    """Give the instruments of this process; what they hold is sent before the block is left.

    Whatever cannot be sent within three seconds then is lost.
    """
    otel = OtelSettings.from_environment(os.environ)
    if otel.traces is None:
        yield SILENT
        return
    provider = _tracer_provider(otel.traces, _resource(process, worker))
    log.info("telemetry.opened", traces=otel.traces)
    try:
        yield Instruments(tracing_of(provider, settings))
    finally:
        await _within(_LAST_SECONDS, provider.shutdown)


def tracing_of(provider: TracerProvider, settings: Settings) -> Tracing:
    """Give the tracing of a process whose spans go to this provider."""
    system, destination = "haulage_outbox", "outbox"
    if settings.consumer_mode == "sqs-consumer" and settings.queue_url:
        system, destination = "aws_sqs", settings.queue_url.rstrip("/").rpartition("/")[2]
    return Tracing(
        provider.get_tracer(names.SCOPE),
        system=system,
        destination=destination,
        each_run=settings.trace_runs,
    )


def _tracer_provider(protocol: Protocol, resource: Resource) -> TracerProvider:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # By itself the SDK would wait at the exit for a collector that never answers.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_span_exporter(protocol)))
    return provider


def _span_exporter(protocol: Protocol) -> SpanExporter:
    # ruff: noqa: PLC0415 - each costs a good part of a second, and only one is needed
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter()
    from opentelemetry.exporter.otlp.proto.http import trace_exporter

    return trace_exporter.OTLPSpanExporter()


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


async def _within(seconds: float, close: Callable[[], object]) -> None:
    """Close in a thread that ends with the process, whatever it waits for."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()

    def work() -> None:
        try:
            close()
        finally:
            with suppress(RuntimeError):  # the loop is closed already: nobody waits any more
                loop.call_soon_threadsafe(closed.set)

    threading.Thread(target=work, name="telemetry close", daemon=True).start()
    try:
        async with asyncio.timeout(seconds):
            await closed.wait()
    except TimeoutError:
        log.warning("telemetry.not_sent", waited_seconds=seconds)
