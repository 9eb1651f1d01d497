"""Spans, and the one rule by which they hang together.

It is argued for in docs/decisions/what-is-done-for-one-job-is-one-trace.md.

What is done for a job is the child of the span that submitted it. What is done for several jobs
at once starts a trace of its own and links to each. Every other relation is a link: to what had
the work done again, and from a commit to what it settles. Jobs that were not sampled do not count
where others were.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Final

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    SpanKind,
    StatusCode,
    get_current_span,
    use_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from infra.telemetry import names
from schema.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opentelemetry.trace import Span, SpanContext, Tracer
    from opentelemetry.util.types import AttributeValue

    from schema.message import Trace

    Attributes = Mapping[str, AttributeValue]

# As many as the SDK keeps of the links of a span.
_MOST_LINKS = 128
_MOST_EVENTS = 20
_NOWHERE = Context()
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_NO_SPAN: Final = nullcontext(INVALID_SPAN)


class Tracing:
    """Makes the spans of a process; without a tracer it makes none, and costs next to nothing.

    Nor does it where ``is_wanted`` says no: what is stored and sent carries on the trace that came.
    """

    def __init__(
        self,
        tracer: Tracer | None = None,
        *,
        system: str = "",
        destination: str = "",
        each_run: bool = False,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._tracer = tracer
        self._is_wanted = is_wanted
        self._destination = destination
        self._messaging = {
            names.MESSAGING_SYSTEM: system,
            names.MESSAGING_DESTINATION: destination,
        }
        self._each_run = each_run

    def to_sqs(self, queue_url: str) -> Tracing:
        """Give what makes the same spans of messages that go by this queue."""
        return Tracing(
            self._tracer,
            system="aws_sqs",
            destination=queue_url.rstrip("/").rpartition("/")[2],
            each_run=self._each_run,
            is_wanted=self._is_wanted,
        )

    @property
    def is_on(self) -> bool:
        """Say whether spans are made at all."""
        return self._tracer is not None

    def one(
        self,
        operation: names.Operation,
        trace: Trace,
        *,
        origin: str | None = None,
        attributes: Attributes = {},  # noqa: B006 - read only
    ) -> AbstractContextManager[Span]:
        """Open a span that carries on one trace, the current one inside the block.

        ``origin`` is the traceparent of what had the work done again.
        """
        if self._tracer is None or not self._is_wanted():
            return _NO_SPAN
        cause = get_current_span(_remote(origin)).get_span_context()
        return self._span(
            f"{operation.name} {self._destination}",
            operation.kind,
            parent=_remote(trace.traceparent, trace.tracestate),
            links=[_link(cause, trace)] if cause.trace_flags.sampled else (),
            attributes={**self._describe(operation), **_correlation(trace), **attributes},
        )

    def together(
        self,
        operation: names.Operation,
        traces: Iterable[Trace],
        *,
        parts: Iterable[Span] = (),
        attributes: Attributes = {},  # noqa: B006 - read only
        began: float | None = None,
    ) -> AbstractContextManager[Span]:
        """Open a span that carries on any number of traces.

        ``parts`` are the spans of what is dealt with here at once: it links to each of them.
        ``began`` is a reading of ``time.monotonic``, of what is known to be work only at its end.
        """
        if self._tracer is None or not self._is_wanted():
            return _NO_SPAN
        distinct = {trace.traceparent: trace for trace in traces}
        contexts = [
            (_span_context(trace), trace) for trace in islice(distinct.values(), _MOST_LINKS)
        ]
        sampled = [pair for pair in contexts if pair[0].trace_flags.sampled]
        about = {**self._describe(operation), **attributes}
        dealt_with = [part.get_span_context() for part in islice(parts, _MOST_LINKS)]
        links = [Link(context) for context in dealt_with if context.trace_flags.sampled]
        if len(sampled) > 1:
            parent = _NOWHERE
            links = links or [_link(context, trace) for context, trace in sampled]
        elif sampled or len(distinct) == 1:
            ((_, trace),) = sampled or contexts
            parent = _remote(trace.traceparent, trace.tracestate)
            about |= _correlation(trace)
        else:
            return _NO_SPAN
        return self._span(
            f"{operation.name} {self._destination}",
            operation.kind,
            parent=parent,
            links=links,
            attributes=about,
            began_ns=None if began is None else _dated_ns(began),
        )

    def serving(
        self, trace: Trace, *, name: str, attributes: Attributes
    ) -> AbstractContextManager[Span]:
        """Open the span of a request, the child of the client's if it sent a context."""
        if self._tracer is None or not self._is_wanted():
            return _NO_SPAN
        return self._span(
            name,
            SpanKind.SERVER,
            parent=_remote(trace.traceparent, trace.tracestate),
            attributes={names.CORRELATION_ID: trace.correlation_id, **attributes},
        )

    def inside(
        self,
        operation: names.Operation,
        trace: Trace,
        *,
        attributes: Attributes = {},  # noqa: B006
    ) -> AbstractContextManager[Span]:
        """Open a span within the current one, which carries on the same trace."""
        if self._tracer is None or not get_current_span().is_recording():
            return _NO_SPAN
        return self._span(
            f"{operation.name} {self._destination}",
            operation.kind,
            parent=None,
            attributes={**self._describe(operation), **_correlation(trace), **attributes},
        )

    def run(
        self, trace: Trace, *, kind: str, attributes: Callable[[], Attributes]
    ) -> AbstractContextManager[Span]:
        """Open a span for one run of a processor within the current span, where it is wanted.

        ``attributes`` is asked only then: this is called for every input.
        """
        if not self._each_run or not get_current_span().is_recording():
            return _NO_SPAN
        return self._span(
            f"{names.RUN.name} {kind}",
            names.RUN.kind,
            parent=None,
            attributes={names.CORRELATION_ID: trace.correlation_id, **attributes()},
        )

    def _describe(self, operation: names.Operation) -> dict[str, AttributeValue]:
        if operation.type is None:
            return {}
        return {
            **self._messaging,
            names.MESSAGING_OPERATION: operation.name,
            names.MESSAGING_OPERATION_TYPE: operation.type,
        }

    @contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        *,
        parent: Context | None = _NOWHERE,
        links: Sequence[Link] = (),
        attributes: Attributes,
        began_ns: int | None = None,
    ) -> Iterator[Span]:
        assert self._tracer is not None, "asked before"
        span = self._tracer.start_span(
            name, parent, kind, attributes=attributes, links=links, start_time=began_ns
        )
        # The SDK would record messages of exceptions as they are, with whatever stands in them.
        with use_span(
            span, end_on_exit=True, record_exception=False, set_status_on_exception=False
        ):
            try:
                yield span
            except Exception as error:
                mark_failed(span, type(error).__name__, str(error))
                raise


OFF: Final = Tracing()


def continued(trace: Trace, span: Span) -> Trace:
    """Give the trace as whoever comes next is to carry it on; unchanged where there is no span."""
    context = span.get_span_context()
    if not context.is_valid:
        return trace
    return replace(
        trace, traceparent=traceparent(context), tracestate=context.trace_state.to_header() or None
    )


def traceparent(context: SpanContext) -> str:
    """Write a context as W3C does, version 00."""
    flags = int(context.trace_flags) & 0xFF
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"


def mark_failed(span: Span, error_type: str, message: str) -> None:
    """Say of a span that it failed, and why, without what must not be written."""
    span.set_attribute(names.ERROR_TYPE, error_type)
    span.set_status(StatusCode.ERROR, redact(message)[:500])


def _correlation(trace: Trace) -> dict[str, AttributeValue]:
    return {
        names.CORRELATION_ID: trace.correlation_id,
        names.MESSAGING_CONVERSATION_ID: trace.correlation_id,
    }


def _link(context: SpanContext, trace: Trace) -> Link:
    return Link(context, {names.CORRELATION_ID: trace.correlation_id})


def _span_context(trace: Trace) -> SpanContext:
    return get_current_span(_remote(trace.traceparent, trace.tracestate)).get_span_context()


def _dated_ns(moment: float) -> int:
    # Only telemetry is dated by the host's clock.
    return time.time_ns() - round((time.monotonic() - moment) * 1e9)


@lru_cache(maxsize=1_024)
def _remote(parent: str | None, state: str | None = None) -> Context:
    """Read a context to carry on; it is empty where there is none, or a malformed one.

    Kept for a while: all entries of a job have the same, and each is read for several spans.
    """
    if parent is None:
        return _NOWHERE
    carrier = {"traceparent": parent}
    if state:
        carrier["tracestate"] = state
    return _PROPAGATOR.extract(carrier, _NOWHERE)
