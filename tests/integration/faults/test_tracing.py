"""Each message carries the trace of its own job, whatever runs around it."""

import asyncio
from typing import Any

import structlog

from schema.outcome import Outcome, Succeeded
from tests.deliveries import Delivery
from tests.integration.faults.stations import log_lines, named, queue_url
from tests.platform import Platform, Recorder


def parent(digit: str) -> str:
    return f"00-{digit * 32}-{digit * 16}-01"


async def submit_two(platform: Platform) -> None:
    for digit in "ab":
        await platform.submit(
            1,
            correlation_id=f"request-{digit}",
            traceparent=parent(digit),
            tracestate=f"v={digit}",
            baggage=f"tenant={digit}",
        )


async def test_one_round_of_the_relay_sends_each_message_with_the_trace_of_its_own_job(
    station: Delivery, platform: Platform
) -> None:
    """Captured when the job was submitted: what is bound around the relay does not matter."""
    await submit_two(platform)
    with structlog.contextvars.bound_contextvars(correlation_id="somebody-elses"):
        assert (await station.relay().relay_once()).sent == 2
    assert station.sqs is not None
    answer = await station.sqs.receive_message(
        QueueUrl=queue_url(station), MaxNumberOfMessages=10, MessageAttributeNames=["All"]
    )
    carried = sorted(
        tuple(
            message["MessageAttributes"][name]["StringValue"]
            for name in ("correlation_id", "traceparent", "tracestate", "baggage")
        )
        for message in answer["Messages"]
    )
    assert carried == [
        ("request-a", parent("a"), "v=a", "tenant=a"),
        ("request-b", parent("b"), "v=b", "tenant=b"),
    ]


async def test_messages_of_one_receive_are_worked_on_under_the_trace_of_each(
    station: Delivery, platform: Platform
) -> None:
    seen: dict[str, Any] = {}

    async def look(claim: Any, _input: object) -> Outcome:
        await asyncio.sleep(0)
        seen[claim.trace.correlation_id] = structlog.contextvars.get_contextvars()
        assert claim.trace.traceparent == parent(claim.trace.correlation_id[-1])
        return Succeeded()

    await submit_two(platform)
    await station.deliver()
    jobs = [row.id for row in await platform.rows("SELECT id FROM job")]
    with log_lines() as lines:
        async with station.consuming(Recorder(look)):
            for job_id in jobs:
                await platform.until(job_id, "COMPLETED")
    assert sorted(seen) == ["request-a", "request-b"]
    for correlation_id, bound in seen.items():
        assert bound["correlation_id"] == correlation_id
    told = sorted(line["correlation_id"] for line in named(lines, "entry.done"))
    assert told == ["request-a", "request-b"]


async def test_a_message_without_attributes_still_runs_under_its_jobs_trace(
    station: Delivery, platform: Platform
) -> None:
    """The row in the outbox is the truth; the attributes are for whoever looks at the queue."""
    await submit_two(platform)
    (first, *_) = await platform.rows("SELECT id, job_id FROM outbox ORDER BY id")
    assert station.sqs is not None
    await station.sqs.send_message(
        QueueUrl=queue_url(station),
        MessageBody=f'{{"v":1,"entry":{first.id},"job":"{first.job_id}","kind":"probe"}}',
    )
    (claim,) = await station.queue("w").claim(10, asyncio.Event())
    assert claim.trace.correlation_id == "request-a"
    assert claim.trace.baggage == "tenant=a"
