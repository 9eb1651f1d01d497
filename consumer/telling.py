"""What a consumer tells of its entries, in spans and metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from infra.telemetry import names
from infra.telemetry.tracing import mark_failed
from schema.lifecycle import InputStatus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

    from consumer.executor import Executor
    from consumer.intake import Intake
    from consumer.lease import Lease
    from consumer.regulator import Regulator
    from infra.queue.protocol import Claim, ClaimedInput
    from infra.settle import Settled
    from infra.telemetry.metrics import Metrics
    from infra.telemetry.tracing import Tracing

# The first failures of an entry say what is wrong; a chunk of thousands may fail alike.
_MOST_FAILURES = 20
_WENT_WRONG = frozenset({InputStatus.DLQ, InputStatus.RETRY_WAIT})


def process_span(tracing: Tracing, claim: Claim) -> AbstractContextManager[Span]:
    """Open the span of a claim that begins to be worked on."""
    if not tracing.is_on:
        return tracing.one(names.PROCESS, claim.trace)
    # What was sent while the claim began is dated later than the claim.
    queued_ms = claim.queued_ms if (claim.queued_ms or 0.0) >= 0 else None
    about: dict[str, AttributeValue] = {
        names.JOB_KEY: claim.job_key,
        names.KIND: claim.kind,
        names.ENTRY_ID: claim.entry_id,
        names.ENTRY_EPOCH: claim.epoch,
        names.INPUTS: len(claim.inputs),
        names.ATTEMPT: claim.inputs[0].attempts + 1 if claim.inputs else 1,
        names.DWELL_OUTBOX_SECONDS: (claim.waited_ms - (queued_ms or 0.0)) / 1_000,
    }
    if queued_ms is not None:
        about[names.DWELL_QUEUE_SECONDS] = queued_ms / 1_000
    return tracing.one(names.PROCESS, claim.trace, origin=claim.origin, attributes=about)


def run_span(
    tracing: Tracing, claim: Claim, inputs: Sequence[ClaimedInput]
) -> AbstractContextManager[Span]:
    """Open the span of one run of a processor, where such spans are wanted."""
    return tracing.run(
        claim.trace,
        kind=claim.kind,
        attributes=lambda: {
            names.ORDINAL: inputs[0].ordinal,
            names.INPUTS: len(inputs),
            names.ATTEMPT: inputs[0].attempts + 1,
        },
    )


def tell(metrics: Metrics, lease: Lease, *, ended: str, began: float) -> None:
    """Tell how the work on a claim ended, and how long everything took."""
    claim, span = lease.claim, lease.span
    metrics.entry_ended(
        claim.kind,
        ended=ended,
        waited_seconds=claim.waited_ms / 1_000,
        run_seconds=lease.run_seconds / lease.ran if lease.ran else None,
        since_due_seconds=claim.due_ms / 1_000 + time.monotonic() - began,
    )
    if not span.is_recording():
        return
    span.set_attributes(
        {
            names.ENTRY_ENDED: ended,
            names.INPUTS_ACCEPTED: lease.accepted,
            names.INPUTS_REFUSED: lease.refused,
        }
    )
    if lease.started_at is not None:
        span.set_attribute(names.DWELL_CONSUMER_SECONDS, lease.started_at - began)


def show_load(metrics: Metrics, intake: Intake, executor: Executor, regulator: Regulator) -> None:
    """Show how many inputs are in hand and are wanted there, and how many may run at once."""
    metrics.gauge(
        names.IN_FLIGHT, "{input}", "Inputs that were claimed and have not ended",
        lambda: [(intake.in_hand, {})],
    )  # fmt: skip
    metrics.gauge(
        names.CAPACITY, "{input}", "Inputs that may run at once",
        lambda: [(executor.capacity, {})],
    )  # fmt: skip
    metrics.gauge(
        names.LIMIT, "{input}", "Inputs of a kind that may run at once",
        lambda: [(slots, {names.METRIC_KIND: kind}) for kind, slots in regulator.limits.items()],
    )  # fmt: skip
    metrics.gauge(
        names.TARGET, "{input}", "Inputs that are worth having in hand",
        lambda: [(intake.target, {})],
    )  # fmt: skip


def tell_failure(lease: Lease, line: Settled) -> None:
    """Say of the span of an entry that one of its inputs failed; bounded, however many do."""
    span, verdict = lease.span, line.verdict
    if not span.is_recording() or lease.told_failures == _MOST_FAILURES:
        return
    lease.told_failures += 1
    span.add_event(
        names.INPUT_FAILED,
        {
            names.ORDINAL: line.settlement.input.ordinal,
            names.ATTEMPT: line.settlement.input.attempts + 1,
            names.INPUT_STATUS: verdict.status.value,
            names.ERROR_TYPE: verdict.error_class or "refused late",
        },
    )
    if verdict.status in _WENT_WRONG and lease.told_failures == 1:
        mark_failed(span, verdict.error_class or "", verdict.error_message or "")
