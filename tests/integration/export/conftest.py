"""A bucket of its own for each test, reached directly or through a proxy that can fail."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from types_aiobotocore_s3 import S3Client

from infra.clients import Clients
from infra.settings import Settings
from infra.storage import Storage
from tests.conftest import Aws
from tests.platform import settings_for
from tests.stubs.s3_proxy import S3Proxy, s3_proxy

PART_BYTES = 5 * 1024 * 1024


@pytest.fixture
def aws_environment(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws.endpoint_url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", aws.region)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", aws.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", aws.secret_access_key)
    monkeypatch.delenv("AWS_PROFILE", raising=False)


@pytest.fixture
def settings(database_url: str) -> Settings:
    return settings_for(
        database_url,
        bucket=f"test-{uuid4().hex[:12]}",
        export_part_bytes=PART_BYTES,
        aws_attempts=1,
    )


@pytest.fixture
async def s3(aws_environment: None, settings: Settings) -> AsyncIterator[S3Client]:
    assert settings.bucket is not None
    async with Clients(settings).s3() as client:
        await client.create_bucket(Bucket=settings.bucket)
        yield client


@pytest.fixture
def storage(s3: S3Client, settings: Settings) -> Storage:
    return Storage(s3, settings)


@pytest.fixture
async def proxy(s3: S3Client, aws: Aws) -> AsyncIterator[S3Proxy]:
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
