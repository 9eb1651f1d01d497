"""Exporters that say in our words, once, that their collector is away, and that it is back.

What the libraries of the exporters log while they export is not written: it is kept as the
reason. What they log at other times, as about a setting that they cannot read, is written.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opentelemetry.context import Context
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.trace import ReadableSpan, Span

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Result = TypeVar("Result")

# While the collector is away, a span that often asks whether it is back.
_PROBE_SECONDS = 2.0
_LIBRARIES = "opentelemetry.exporter.otlp"
_OVER_GRPC = "opentelemetry.exporter.otlp.proto.grpc.exporter"


class ToldSpanExporter(SpanExporter):
    """Exports spans as the given exporter does."""

    def __init__(
        self, exporter: SpanExporter, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._exporter = exporter
        self._told = _Told("traces")
        self._clock = clock
        self._probed_at = 0.0

    def wants_spans(self) -> bool:
        """Say whether a span is worth making.

        While the collector is away spans would be lost: only one every two seconds is wanted, to
        ask whether it is back.
        """
        return not self._told.is_away or self._clock() - self._probed_at >= _PROBE_SECONDS

    def note_made(self) -> None:
        """Note that a span was made that will be exported, which not every sampler lets be."""
        self._probed_at = self._clock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export a batch; what fails is lost."""
        return self._told.of(
            lambda: self._exporter.export(spans),
            success=SpanExportResult.SUCCESS,
            failure=SpanExportResult.FAILURE,
        )

    def shutdown(self) -> None:
        """Give up what is under way."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Wait until nothing is under way."""
        return self._exporter.force_flush(timeout_millis)


class Probes(SpanProcessor):
    """Tells the exporter which spans are made."""

    def __init__(self, exporter: ToldSpanExporter) -> None:
        self._exporter = exporter

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002
        """Note a span; those that are not sampled do not come here."""
        self._exporter.note_made()


class ToldMetricExporter(MetricExporter):
    """Exports metrics as the given exporter does."""

    def __init__(self, exporter: MetricExporter, *, signal: str = "metrics") -> None:
        super().__init__(
            preferred_temporality=exporter._preferred_temporality,  # noqa: SLF001 - as a reader asks for it
            preferred_aggregation=exporter._preferred_aggregation,  # noqa: SLF001
        )
        self._exporter = exporter
        self._told = _Told(signal)

    def export(
        self,
        metrics_data: MetricsData,
        timeout_millis: float = 10_000,
        **more: Any,  # noqa: ANN401
    ) -> MetricExportResult:
        """Export one collection; the next one holds the totals again."""
        return self._told.of(
            lambda: self._exporter.export(metrics_data, timeout_millis, **more),
            success=MetricExportResult.SUCCESS,
            failure=MetricExportResult.FAILURE,
        )

    def shutdown(self, timeout_millis: float = 30_000, **more: Any) -> None:  # noqa: ANN401
        """Give up what is under way."""
        self._exporter.shutdown(timeout_millis, **more)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Wait until nothing is under way."""
        return self._exporter.force_flush(timeout_millis)


class _Told:
    """Says that an exporter cannot export when it begins, and that it can again."""

    def __init__(self, signal: str) -> None:
        self._signal = signal
        self._failures = 0

    @property
    def is_away(self) -> bool:
        """Say whether the last export failed."""
        return self._failures > 0

    def of(self, export: Callable[[], Result], *, success: Result, failure: Result) -> Result:
        """Export, and say what there is to say of how it ended; give the result."""
        with _reasons() as reasons:
            try:
                result = export()
            except Exception as error:  # noqa: BLE001 - lost, like all that cannot be sent
                name = type(error).__name__
                # These repeat what was wrong, which may be the key in a header.
                is_shown = not isinstance(error, ValueError | TypeError)
                reasons.append(f"{name}: {error}" if is_shown else name)
                result = failure
        self._ended(ok=result is success, reasons=reasons)
        return result

    def _ended(self, *, ok: bool, reasons: Sequence[str]) -> None:
        if not ok:
            self._failures += 1
            if self._failures == 1:
                log.warning(
                    "telemetry.away",
                    exporter=self._signal,
                    error=reasons[0] if reasons else "no reason was given",
                )
        elif self._failures:
            log.info("telemetry.recovered", exporter=self._signal, after_failures=self._failures)
            self._failures = 0


class _Reasons(logging.Handler):
    """Keeps what is logged by a thread that exports, and hands on the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.of_thread = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        kept: list[str] | None = getattr(self.of_thread, "kept", None)
        if kept is None:
            logging.getLogger().handle(record)
        else:
            kept.append(record.getMessage())


_HANDLER = _Reasons()


@contextmanager
def _reasons() -> Iterator[list[str]]:
    kept: list[str] = []
    _HANDLER.of_thread.kept = kept
    try:
        yield kept
    finally:
        _HANDLER.of_thread.kept = None


def take_over_logs() -> None:
    """Have what the libraries of the exporters log go through here; call it once they are there."""
    libraries = logging.getLogger(_LIBRARIES)
    libraries.handlers = [_HANDLER]
    libraries.propagate = False
    # It drops what it takes for a repetition, which may be the reason of the other exporter.
    logging.getLogger(_OVER_GRPC).filters.clear()
