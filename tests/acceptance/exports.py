"""A site that exports: its bucket, its API, and a client of it."""

import csv
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import httpx
import pytest

from localstack import children, seed
from localstack.init import resources
from localstack.init.resources import Access
from localstack.interruption import Interruption
from tests.acceptance.fleet import CHECKOUT, PATIENCE_SECONDS, Fleet, Member
from tests.acceptance.site import Site, SqsQueueInside
from tests.platform import eventually

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

    def path(self, day: str, job_id: str, one: Mapping[str, object]) -> str:
        """Give where the file of an input of a job of that day (YYYY/MM/DD) must be."""
        name = f"{one['indexKey']}_{one['effectiveDate']}_{one['asofindicator']}.csv"
        return f"s3://{self.name}/exports/{day}/{job_id}/{name}"

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

    async def submit(self, inputs: Sequence[Mapping[str, object]], correlation_id: str) -> str:
        answer = await self.client.post(
            "/jobs", json={"inputs": list(inputs)}, headers={"X-Correlation-Id": correlation_id}
        )
        assert answer.status_code == 202, answer.text
        assert answer.headers["x-correlation-id"] == correlation_id
        assert answer.json()["status"] == "SUBMITTED"
        return str(answer.json()["jobId"])

    async def ended(
        self, job_id: str, *, timeout_seconds: float = PATIENCE_SECONDS
    ) -> dict[str, Any]:
        """Wait until the job is over, and give it as the client sees it."""
        job: dict[str, Any] = {}

        async def is_over() -> bool:
            nonlocal job
            job = (await self.client.get(f"/jobs/{job_id}")).json()
            return job["status"] not in ("SUBMITTED", "RUNNING")

        await eventually(is_over, timeout_seconds=timeout_seconds, pause_seconds=0.05)
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
    fleet = Fleet(site.fleet.folder, environment, whole=True)
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
