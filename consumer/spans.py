"""What the spans of a consumer say of an entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.telemetry import names
from infra.telemetry.tracing import mark_failed
from schema.lifecycle import InputStatus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span

    from consumer.lease import Lease
    from infra.queue.protocol import Claim, ClaimedInput
    from infra.settle import Settled
    from infra.telemetry.tracing import Attributes, Tracing

# The first failures of an entry say what is wrong; a chunk of thousands may fail alike.
_MOST_FAILURES = 20
_WENT_WRONG = frozenset({InputStatus.DLQ, InputStatus.RETRY_WAIT})


def described(claim: Claim) -> Attributes:
    """Describe a claim that begins to be worked on."""
    queued_ms = claim.queued_ms
    dwell = {names.DWELL_OUTBOX_SECONDS: (claim.waited_ms - (queued_ms or 0.0)) / 1_000}
    if queued_ms is not None:
        dwell[names.DWELL_QUEUE_SECONDS] = queued_ms / 1_000
    return {
        names.JOB_KEY: claim.job_key,
        names.KIND: claim.kind,
        names.ENTRY_ID: claim.entry_id,
        names.ENTRY_EPOCH: claim.epoch,
        names.INPUTS: len(claim.inputs),
        names.ATTEMPT: max((input_.attempts for input_ in claim.inputs), default=0) + 1,
        **dwell,
    }


def run_span(
    tracing: Tracing, claim: Claim, inputs: Sequence[ClaimedInput]
) -> AbstractContextManager[Span]:
    """Open the span of one run of a processor, where such spans are wanted."""
    return tracing.run(
        claim.trace,
        kind=claim.kind,
        attributes={
            names.ORDINAL: inputs[0].ordinal,
            names.INPUTS: len(inputs),
            names.ATTEMPT: inputs[0].attempts + 1,
        },
    )


def tell(span: Span, lease: Lease, *, ended: str, began: float) -> None:
    """Say how the work on a claim ended, and how long it waited for a slot."""
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
