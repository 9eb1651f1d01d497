"""The export job from the request to the files, through all three processes."""

import csv
import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import httpx
import pytest

from localstack import children, demo, seed
from localstack.init import resources
from localstack.init.resources import Access
from localstack.interruption import Interruption
from tests.acceptance.fleet import CHECKOUT, PATIENCE_SECONDS, Fleet, Member
from tests.acceptance.site import Site, SqsQueueInside
from tests.platform import eventually

pytestmark = pytest.mark.acceptance

HEADER = ["index_key", "effective_date", "asof_indicator", "line", "level"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket that keeps every version of every object, so that none is written twice unseen."""

    s3: Any
    name: str

    @classmethod
    def made(cls, aws: Access) -> "Bucket":
        bucket = cls(resources.client("s3", aws), f"test-{uuid4().hex[:12]}")
        bucket.s3.create_bucket(Bucket=bucket.name)
        bucket.s3.put_bucket_versioning(
            Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"}
        )
        return bucket

    def versions(self) -> list[str]:
        """Give the key of each version of each object."""
        pages = self.s3.get_paginator("list_object_versions").paginate(Bucket=self.name)
        return [version["Key"] for page in pages for version in page.get("Versions", ())]

    def read(self, uri: str) -> tuple[list[list[str]], dict[str, str]]:
        """Give the rows of a file and its metadata."""
        key = uri.removeprefix(f"s3://{self.name}/")
        found = self.s3.get_object(Bucket=self.name, Key=key)
        with found["Body"] as body:
            text = body.read().decode()
        assert text.endswith("\r\n")
        return list(csv.reader(text.splitlines())), found["Metadata"]


@dataclass(frozen=True, slots=True)
class Exports:
    """A site that exports into a bucket, and a client of its API."""

    site: Site
    bucket: Bucket
    api: Member
    dispatcher: Member
    client: httpx.AsyncClient

    async def submit(self, inputs: list[dict[str, object]], correlation_id: str) -> str:
        answer = await self.client.post(
            "/jobs", json={"inputs": inputs}, headers={"X-Correlation-Id": correlation_id}
        )
        assert answer.status_code == 202, answer.text
        assert answer.headers["x-correlation-id"] == correlation_id
        assert answer.json()["status"] == "SUBMITTED"
        return str(answer.json()["jobId"])

    async def ended(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = {}

        async def is_over() -> bool:
            nonlocal job
            job = (await self.client.get(f"/jobs/{job_id}")).json()
            return job["status"] not in ("SUBMITTED", "RUNNING")

        await eventually(is_over, timeout_seconds=PATIENCE_SECONDS, pause_seconds=0.05)
        return job


@pytest.fixture
async def exports(
    request: pytest.FixtureRequest, site: Site, aws: Access
) -> AsyncIterator[Exports]:
    """A site whose files are in LocalStack, and with the parameter its queue as well."""
    bucket = Bucket.made(aws)
    environment = dict(site.fleet.environment) | {
        "HAULAGE_BUCKET": bucket.name,
        "AWS_ENDPOINT_URL_S3": aws.endpoint_url,
    }
    if getattr(request, "param", None) == "localstack":
        made = resources.client("sqs", aws).create_queue(QueueName=f"test-{uuid4().hex}")
        environment["AWS_ENDPOINT_URL_SQS"] = aws.endpoint_url
        environment["HAULAGE_QUEUE_URL"] = made["QueueUrl"]
        site = replace(site, queue=SqsQueueInside.at(aws, made["QueueUrl"]))
    await seed.seed(environment["DATABASE_URL"])
    fleet = Fleet(site.fleet.folder, environment)
    try:
        async with _served(replace(site, fleet=fleet), bucket) as exports:
            yield exports
    finally:
        fleet.end()


@asynccontextmanager
async def _served(site: Site, bucket: Bucket) -> AsyncIterator[Exports]:
    api, dispatcher = site.fleet.start("api"), site.fleet.start("dispatcher")
    environment = children.inherited() | dict(site.fleet.environment)
    key = children.key("owner", None, environment, CHECKOUT, Interruption())
    await site.fleet.ready(api, dispatcher)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{api.port}",
        headers={"Authorization": f"Bearer {key}"},
        timeout=60,
        trust_env=False,
    ) as client:
        yield Exports(site, bucket, api, dispatcher, client)


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
    expected = [{**one, "s3Path": _path(bucket, day, first, one)} for one in inputs]
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


def _path(bucket: Bucket, day: str, job_id: str, one: dict[str, object]) -> str:
    name = f"{one['indexKey']}_{one['effectiveDate']}_{one['asofindicator']}.csv"
    return f"s3://{bucket.name}/exports/{day}/{job_id}/{name}"


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
