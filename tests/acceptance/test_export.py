"""The export job from the request to the files, through all three processes."""

import datetime as dt
from typing import Any
from uuid import uuid4

import pytest

from localstack import demo, seed
from tests.acceptance.exports import HEADER, Exports
from tests.acceptance.fleet import PATIENCE_SECONDS
from tests.acceptance.site import SqsQueueInside
from tests.platform import eventually

pytestmark = pytest.mark.acceptance


async def both_jobs_as_promised(exports: Exports) -> None:
    site, bucket = exports.site, exports.bucket
    inputs = demo.sample_inputs()
    correlation_id = f"acceptance.{uuid4().hex}"
    first = await exports.submit(inputs, correlation_id)
    if site.queue is not None:
        await _messages_carry(site.queue, correlation_id)
    consumer = site.fleet.start("consumer")
    await consumer.ready()

    job = await exports.ended(first)
    assert (job["status"], job["errorMessage"]) == ("COMPLETED", None)
    counts = [job[name] for name in ("total", "done", "failed", "pending", "running")]
    assert counts == [len(inputs), len(inputs), 0, 0, 0]
    assert (job["filesGenerated"], job["filesReused"]) == (len(inputs), 0)
    day = dt.datetime.fromisoformat(job["requestedAt"]).strftime("%Y/%m/%d")
    expected = [{**one, "s3Path": bucket.path(day, first, one)} for one in inputs]
    assert job["dataContent"] == expected
    written = [f"s3://{bucket.name}/{key}" for key in bucket.versions()]
    assert sorted(written) == sorted(str(one["s3Path"]) for one in expected)
    prices = {(price.symbol, price.day): price.price for price in seed.read_prices()}
    for one in expected:
        rows, metadata = bucket.read(str(one["s3Path"]))
        date = dt.datetime.strptime(f"{one['effectiveDate']}+0000", "%Y%m%d%z").date()
        level = f"{prices[str(one['indexKey']), date]:f}"
        values = [one["indexKey"], date.isoformat(), one["asofindicator"], "1", level]
        assert rows == [HEADER, values]
        assert metadata == {"correlation-id": correlation_id, "job-id": first}

    again_id = f"again.{uuid4().hex}"
    second = await exports.ended(await exports.submit(inputs, again_id))
    assert second["status"] == "COMPLETED"
    assert (second["filesGenerated"], second["filesReused"]) == (0, len(inputs))
    assert second["dataContent"] == expected
    assert len(bucket.versions()) == len(inputs), "a file that is reused is not written"

    await site.platform.check_consistency()
    await site.platform.check_all_done()
    # Without SQS there is nothing for a dispatcher to do as long as all goes well.
    passed = [exports.api, consumer, *([exports.dispatcher] if site.queue else [])]
    for member in passed:
        for wanted in (correlation_id, again_id):
            lines = [line for line in member.lines() if line.get("correlation_id") == wanted]
            assert lines, f"{member.identity.name} says nothing of {wanted}"
    done = consumer.lines("entry.done")
    assert sum(line["accepted"] for line in done) == 2 * len(inputs)
    site.fleet.none_failed()


async def _messages_carry(queue: SqsQueueInside, correlation_id: str) -> None:
    """See that the messages carry the id, while there is no consumer to take them."""
    seen: list[dict[str, Any]] = []

    async def something_came() -> bool:
        seen.extend(queue.peek())
        return bool(seen)

    await eventually(something_came, timeout_seconds=PATIENCE_SECONDS)
    attributes = [message["MessageAttributes"] for message in seen]
    assert {one["correlation_id"]["StringValue"] for one in attributes} == {correlation_id}
    assert all("traceparent" in one for one in attributes)


async def test_an_export_makes_each_file_once_and_the_next_job_reuses_all(exports: Exports) -> None:
    await both_jobs_as_promised(exports)


@pytest.mark.parametrize("exports", ["localstack"], indirect=True)
@pytest.mark.parametrize("site", ["sqs"], indirect=True)
async def test_an_export_through_the_queue_of_localstack(exports: Exports) -> None:
    await both_jobs_as_promised(exports)
