"""What a consumer tells of its entries in spans."""

from dataclasses import replace

import pytest

from consumer.telling import process_span
from infra.telemetry import names
from tests.claims import claim_of
from tests.spans import Spans, attributes
from tests.unit.test_tracing_rule import trace


@pytest.mark.parametrize(("queued_ms", "told"), [(250.0, 0.25), (0.0, 0.0), (-3.0, None)])
def test_no_time_in_the_queue_is_below_nothing(queued_ms: float, told: float | None) -> None:
    spans = Spans()
    claim = replace(claim_of("note", {}, waited_ms=1_000.0), trace=trace(1), queued_ms=queued_ms)
    with process_span(spans.tracing, claim):
        pass
    about = attributes(spans.only("process"))
    assert about.get(names.DWELL_QUEUE_SECONDS) == told
    assert about[names.DWELL_OUTBOX_SECONDS] == pytest.approx(1 - (told or 0))
