import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers

from api.tracing import begun, read_baggage, read_trace, read_traceparent, read_tracestate
from infra.telemetry.logs import CORRELATION_ID, accept_correlation_id
from schema.message import Trace

GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_FORM = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def headers(*pairs: tuple[str, str]) -> Headers:
    return Headers(raw=[(name.encode(), value.encode("latin-1")) for name, value in pairs])


def test_a_well_formed_parent_is_kept() -> None:
    assert read_traceparent(GOOD) == GOOD


@pytest.mark.parametrize(
    "malformed",
    [
        "00-x",
        "",
        GOOD.upper(),
        GOOD + "-extra",
        "ff" + GOOD[2:],
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-" + "0" * 16 + "-01",
        GOOD + "\n",
        GOOD[:-1],
    ],
)
def test_a_malformed_parent_starts_a_new_trace(malformed: str) -> None:
    assert read_traceparent(malformed) is None
    trace = begun(read_trace(headers(("traceparent", malformed), ("tracestate", "a=1"))))
    assert trace.traceparent is not None
    assert _FORM.fullmatch(trace.traceparent)
    assert trace.traceparent != malformed
    assert trace.tracestate is None


def test_a_parent_given_twice_starts_a_new_trace() -> None:
    trace = read_trace(headers(("traceparent", GOOD), ("traceparent", GOOD)))
    assert trace.traceparent != GOOD


def test_a_later_version_is_read_as_ours() -> None:
    assert read_traceparent("01" + GOOD[2:] + "-more") == GOOD


@given(st.text(max_size=80) | st.from_regex(_FORM, fullmatch=True))
def test_what_is_kept_of_a_parent_is_valid_to_opentelemetry(header: str) -> None:
    kept = begun(Trace("id", read_traceparent(header))).traceparent
    assert kept is not None
    context = TraceContextTextMapPropagator().extract({"traceparent": kept})
    assert get_current_span(context).get_span_context().is_valid


def test_state_is_cut_to_32_members_and_512_characters() -> None:
    kept = read_tracestate(",".join(f"k{number}=v" for number in range(40)))
    assert kept is not None
    assert len(kept.split(",")) == 32
    kept = read_tracestate(",".join(f"k{number}={'v' * 100}" for number in range(10)))
    assert kept is not None
    assert len(kept) <= 512
    assert kept.startswith("k0=")


@pytest.mark.parametrize("malformed", ["a", "a=1,a=2", "A=1", "a=\x01", "=1", "a=1,b"])
def test_a_malformed_state_is_dropped(malformed: str) -> None:
    assert read_tracestate(malformed) is None


def test_baggage_is_cut_to_64_items_and_8192_bytes() -> None:
    kept = read_baggage(",".join(f"k{number}=v" for number in range(65)))
    assert kept is not None
    assert len(kept.split(",")) == 64
    kept = read_baggage(",".join(f"k{number}={'v' * 500}" for number in range(20)))
    assert kept is not None
    assert 0 < len(kept) <= 8_192
    assert read_baggage("k=" + "v" * 10_000) is None


@given(st.text(st.characters(max_codepoint=255), max_size=200))
def test_whatever_baggage_comes_only_well_formed_members_are_kept(header: str) -> None:
    kept = read_baggage(header)
    if kept is not None:
        assert kept.isascii()
        assert kept.isprintable()
        assert all("=" in member for member in kept.split(","))
        W3CBaggagePropagator().extract({"baggage": kept})


@given(st.text())
def test_whatever_correlation_id_comes_a_fit_one_is_used(candidate: str) -> None:
    accepted = accept_correlation_id(candidate)
    assert CORRELATION_ID.fullmatch(accepted)
    assert accepted == candidate or not CORRELATION_ID.fullmatch(candidate)


@pytest.mark.parametrize("given_ids", [["a b"], ["x" * 129], ["a", "a"], [""], ["ä"]])
def test_an_unfit_correlation_id_is_replaced(given_ids: list[str]) -> None:
    trace = read_trace(headers(*(("x-correlation-id", each) for each in given_ids)))
    assert trace.correlation_id not in given_ids
    assert CORRELATION_ID.fullmatch(trace.correlation_id)


def test_baggage_beyond_its_limit_is_not_even_looked_at() -> None:
    kept = read_baggage("a=1," + "b=" + "v" * 8_000 + "," + "c=" + "v" * 8_000)
    assert kept == "a=1,b=" + "v" * 8_000
    assert read_baggage("a = 1 ; p ; q = 2 ,x") == "a = 1 ; p ; q = 2"
