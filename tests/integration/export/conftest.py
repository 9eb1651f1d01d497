"""A bucket of its own for each test, reached directly or through a proxy that can fail."""

from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest
from types_aiobotocore_s3 import S3Client

from infra.clients import Clients
from infra.settings import Settings
from infra.storage import Storage
from localstack.init.resources import Access
from tests.deliveries import aws_environment
from tests.platform import settings_for
from tests.stubs.s3_proxy import S3Proxy, s3_proxy

PART_BYTES = 5 * 1024 * 1024


@pytest.fixture
def reaching_aws(aws: Access) -> Iterator[None]:
    with aws_environment(aws):
        yield


@pytest.fixture
def settings(database_url: str) -> Settings:
    return settings_for(
        database_url,
        bucket=f"test-{uuid4().hex[:12]}",
        export_part_bytes=PART_BYTES,
        aws_attempts=1,
    )


@pytest.fixture
async def s3(reaching_aws: None, settings: Settings) -> AsyncIterator[S3Client]:
    assert settings.bucket is not None
    async with Clients(settings).s3() as client:
        await client.create_bucket(Bucket=settings.bucket)
        yield client


@pytest.fixture
def storage(s3: S3Client, settings: Settings) -> Storage:
    return Storage(s3, settings)


@pytest.fixture
async def proxy(s3: S3Client, aws: Access) -> AsyncIterator[S3Proxy]:
    async with s3_proxy(aws.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
async def proxied(
    proxy: S3Proxy, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Storage]:
    """The same bucket as ``storage``, through the proxy."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    async with Clients(settings).s3() as client:
        yield Storage(client, settings)
