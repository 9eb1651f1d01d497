"""Spans that a part makes, kept for the test that looks at them."""

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Sampler
from opentelemetry.trace import SpanContext

from infra.telemetry.instruments import Instruments
from infra.telemetry.tracing import Tracing, traceparent


class Spans:
    """A tracing of the test's own."""

    def __init__(self, sampler: Sampler = DEFAULT_ON, *, each_run: bool = False) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(
            provider.get_tracer("test"), system="aws_sqs", destination="work", each_run=each_run
        )
        self.instruments = Instruments(self.tracing)

    def all(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name.partition(" ")[0] == name]

    def only(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


def context(span: ReadableSpan) -> SpanContext:
    found: SpanContext | None = span.context
    assert found is not None
    return found


def written(span: ReadableSpan) -> str:
    return traceparent(context(span))


def linked(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})
