"""The one rule for parents and links, and what tracing costs where there is none."""

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased
from opentelemetry.trace import INVALID_SPAN, StatusCode

from infra.telemetry import names
from infra.telemetry.tracing import OFF, continued
from schema.message import Trace
from tests.spans import Spans, attributes, context, linked, written

TRACE_ID = 0x4BF92F3577B34DA6A3CE929D0E0E4736


def trace(number: int, *, sampled: bool = True, state: str | None = None) -> Trace:
    flags = "01" if sampled else "00"
    return Trace(f"request-{number}", f"00-{TRACE_ID + number:032x}-{number:016x}-{flags}", state)


def test_what_is_done_for_one_job_is_the_child_of_its_context() -> None:
    spans = Spans()
    with spans.tracing.one(names.PROCESS, trace(1, state="vendor=1"), attributes={"a": 1}):
        pass
    span = spans.only("process")
    assert (context(span).trace_id, span.parent and span.parent.span_id) == (TRACE_ID + 1, 1)
    assert context(span).trace_state.get("vendor") == "1"
    assert (span.kind.name, span.name) == ("CONSUMER", "process work")
    assert attributes(span) == {
        "messaging.system": "aws_sqs",
        "messaging.destination.name": "work",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.conversation_id": "request-1",
        "haulage.correlation_id": "request-1",
        "a": 1,
    }


@pytest.mark.parametrize("many", [1, 3])
def test_a_batch_of_one_job_is_its_child_however_many_messages(many: int) -> None:
    spans = Spans()
    with spans.tracing.together(names.RELAY, [trace(1)] * many):
        pass
    span = spans.only("relay")
    assert (context(span).trace_id, span.links) == (TRACE_ID + 1, ())


def test_a_batch_of_several_jobs_starts_a_trace_and_links_to_each() -> None:
    spans = Spans()
    with spans.tracing.together(
        names.RELAY, [trace(1), trace(2), trace(1), trace(3, sampled=False)]
    ):
        pass
    span = spans.only("relay")
    assert span.parent is None
    assert context(span).trace_id not in {TRACE_ID + number for number in range(4)}
    assert linked(span) == {1, 2}
    told = [link.attributes[names.CORRELATION_ID] for link in span.links if link.attributes]
    assert told == ["request-1", "request-2"]


def test_jobs_that_were_not_sampled_do_not_count_where_one_was() -> None:
    spans = Spans()
    with spans.tracing.together(names.RELAY, [trace(1, sampled=False), trace(2)]):
        pass
    assert context(spans.only("relay")).trace_id == TRACE_ID + 2


def test_a_batch_of_jobs_none_of_which_was_sampled_makes_no_span() -> None:
    spans = Spans(ALWAYS_ON)
    unsampled = [trace(number, sampled=False) for number in range(1, 3)]
    with spans.tracing.together(names.RELAY, unsampled) as span:
        assert span is INVALID_SPAN
    assert not spans.all()


def test_a_commit_links_to_what_it_settles() -> None:
    spans = Spans()
    with (
        spans.tracing.one(names.PROCESS, trace(1)) as first,
        spans.tracing.one(names.PROCESS, trace(2)) as second,
        spans.tracing.together(names.SETTLE, [trace(1), trace(2)], parts=[first, second]),
    ):
        pass
    processes = {context(span).span_id for span in spans.named("process")}
    assert linked(spans.only("settle")) == processes


def test_what_had_the_work_done_again_is_a_link() -> None:
    spans = Spans()
    with spans.tracing.one(names.PROCESS, trace(1)) as span:
        attempt = continued(trace(1), span)
    with spans.tracing.one(names.PROCESS, trace(1), origin=attempt.traceparent):
        pass
    first, second = spans.named("process")
    assert second.parent == first.parent
    assert linked(second) == {context(first).span_id}
    assert attempt.traceparent == written(first)


def test_a_job_that_was_not_sampled_is_not_sampled_later() -> None:
    spans = Spans(ParentBased(TraceIdRatioBased(0.0)))
    with spans.tracing.one(names.PROCESS, trace(1)):
        pass
    with spans.tracing.one(names.PROCESS, trace(2, sampled=False)) as span:
        carried = continued(trace(2, sampled=False), span).traceparent
    assert carried is not None
    assert carried.endswith("-00")
    assert [context(span).trace_id for span in spans.all()] == [TRACE_ID + 1]


@pytest.mark.parametrize("malformed", [None, "", "00-x", "00-" + "0" * 32 + "-" + "1" * 16 + "-01"])
def test_a_job_without_a_usable_context_gets_a_trace_of_its_own(malformed: str | None) -> None:
    spans = Spans()
    with spans.tracing.one(names.PROCESS, Trace("request", malformed), origin=malformed):
        pass
    with spans.tracing.together(names.RELAY, [Trace("request", malformed)]):
        pass
    assert [span.parent for span in spans.all()] == [None, None]
    assert all(attributes(span)[names.CORRELATION_ID] == "request" for span in spans.all())


def test_a_span_that_fails_says_so_without_secrets() -> None:
    spans = Spans()
    with pytest.raises(ConnectionError), spans.tracing.one(names.SETTLE, trace(1)):
        raise ConnectionError("no way to postgresql://u:secret@host/db")
    span = spans.only("settle")
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "no way to postgresql://***@host/db"
    assert attributes(span)["error.type"] == "ConnectionError"
    assert not span.events


def test_runs_have_spans_only_on_request_and_only_where_sampled() -> None:
    for each_run, sampled, many in ((False, True, 0), (True, False, 0), (True, True, 1)):
        spans = Spans(each_run=each_run)
        with spans.tracing.one(names.PROCESS, trace(1, sampled=sampled)):
            with spans.tracing.run(trace(1), kind="export", attributes=dict):
                pass
        assert len(spans.named("run")) == many


def test_without_a_tracer_traces_pass_through_unchanged() -> None:
    with OFF.one(names.PROCESS, trace(1), origin="x") as span:
        assert continued(trace(1), span) == trace(1)
    with OFF.together(names.RELAY, iter([trace(1)])) as span:
        assert not span.is_recording()


def test_what_goes_by_another_queue_names_that_queue() -> None:
    spans = Spans()
    events = spans.tracing.to_sqs("https://sqs.eu-central-1.example/123/haulage-events")
    with events.together(names.RELAY, [trace(1)]):
        pass
    span = spans.only("relay")
    assert span.name == "relay haulage-events"
    assert attributes(span)[names.MESSAGING_DESTINATION] == "haulage-events"
