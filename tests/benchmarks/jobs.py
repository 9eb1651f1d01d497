"""Jobs to drain: stored by the product's own statement, visible all at once, timed to the end."""

from __future__ import annotations

import json
import time
import urllib.request
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from infra.database import rows_of
from infra.wakeup import CHANNEL
from schema.ids import uuid7
from schema.statements.submit import insert_job
from tests.benchmarks.contest import Sample
from tests.benchmarks.stage import opener
from tests.platform import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from tests.benchmarks.meter import Reading
    from tests.benchmarks.stage import Place

_LIMIT_SECONDS = 300.0
_OPEN = "SELECT count(*) FROM job WHERE finished_at IS NULL"
_COUNTS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")


@dataclass(frozen=True, slots=True)
class Job:
    """A job to store: what the submit statement needs to know of it, and its inputs as JSON."""

    head: dict[str, Any]
    bodies: str
    chunk_size: int


def noop_bodies(inputs: int) -> str:
    """Give inputs of about 60 bytes, as one JSON array."""
    filler = "abcdefghijklmnopqrstuvwxyz0123456789"
    return json.dumps([{"n": number, "text": filler} for number in range(inputs)])


def job(place: Place, kind: str, inputs: int, bodies: str, *, chunk_size: int = 100) -> Job:
    """Describe a job."""
    job_id = uuid7()
    head = {
        "id": job_id,
        "owner_id": place.owner_id,
        "kind": kind,
        "priority": 5,
        "max_attempts": 5,
        "tolerated": 0,
        "fail_fast": False,
        "options": '{"reuse": {"enabled": false}}' if kind == "export" else "{}",
        "metadata": "{}",
        "scheduled_for": None,
        "expires_at": None,
        "total": inputs,
        "idempotency_key": None,
        "request_digest": None,
        "correlation_id": f"bench-{job_id.hex}",
        "traceparent": f"00-{job_id.hex}-{job_id.hex[16:]}-01",
        "tracestate": None,
        "baggage": None,
    }
    return Job(head, bodies, chunk_size)


async def clear(place: Place) -> None:
    """Forget all jobs, and write a checkpoint so that none falls into the next run."""
    await place.connection.execute("TRUNCATE job, input, outbox, attempt, dead_letter, artifact")
    await place.connection.execute("CHECKPOINT")


async def drain(place: Place, jobs: Sequence[Job]) -> Sample:
    """Measure from the commit that makes the jobs visible until all are settled: inputs/s.

    The costs run on until the last message is deleted.
    """
    await clear(place)
    before, began = await load(place, jobs)
    await place.connection.execute(f"NOTIFY {CHANNEL}")
    await eventually(partial(all_ended, place), timeout_seconds=_LIMIT_SECONDS)
    elapsed = time.perf_counter() - began
    await eventually(partial(queue_is_empty, place), timeout_seconds=_LIMIT_SECONDS)
    inputs = sum(given.head["total"] for given in jobs)
    after = await place.meter.read(place.pids)
    await check(place, inputs)
    return Sample(inputs / elapsed, place.meter.costs(before, after, inputs=inputs))


async def load(place: Place, jobs: Sequence[Job]) -> tuple[Reading, float]:
    """Store jobs in one transaction, with the statistics that a server has after a while.

    Gives the meter's reading and the time just before the commit.
    """

    async def unit(connection: AsyncConnection) -> tuple[Reading, float]:
        for given in jobs:
            statement = insert_job(given.head, chunk_size=given.chunk_size, bodies=given.bodies)
            await rows_of(connection, statement)
        await connection.execute(text("ANALYZE input, outbox, job"))
        return await place.meter.read(place.pids), time.perf_counter()

    return await place.database.run(unit)


async def check(place: Place, inputs: int) -> None:
    """Fail when a benchmark did not do what it claims to measure."""
    row = await place.connection.fetchrow(
        "SELECT sum(succeeded) AS done, count(*) FILTER (WHERE status <> 'COMPLETED') AS bad,"
        " (SELECT count(*) FROM input WHERE status = 'SUCCEEDED') AS rows,"
        " (SELECT count(*) FROM outbox) AS entries FROM job"
    )
    assert row is not None, "one row"
    assert (row["done"], row["bad"], row["rows"], row["entries"]) == (inputs, 0, inputs, 0), row


async def all_ended(place: Place) -> bool:
    """Say whether every job has ended."""
    return not await place.connection.fetchval(_OPEN)


async def queue_is_empty(place: Place) -> bool:
    """Say whether the place's queue holds nothing more; so it is without a queue."""
    url = place.environment.get("HAULAGE_QUEUE_URL")
    if url is None:
        return True
    request = urllib.request.Request(  # noqa: S310 - our own stub
        place.environment["AWS_ENDPOINT_URL"],
        data=json.dumps({"QueueUrl": url, "AttributeNames": _COUNTS}).encode(),
        headers={"X-Amz-Target": "AmazonSQS.GetQueueAttributes"},
    )
    with opener().open(request, timeout=10) as answer:
        attributes = json.load(answer)["Attributes"]
    return not any(int(attributes[name]) for name in _COUNTS)
