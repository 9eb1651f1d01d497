"""Writing objects: whole or not at all, and nothing left behind."""

import asyncio
import os
import tracemalloc
from collections.abc import AsyncIterator

import pytest
from types_aiobotocore_s3 import S3Client

from infra.clients import Clients
from infra.settings import Settings
from infra.storage import Storage, StoredObject
from schema.errors import Fault, InvalidInput, NotFound, Unavailable, Unusable
from tests.integration.export.conftest import PART_BYTES
from tests.stubs.s3_proxy import S3Proxy, part, puts

KEY = "exports/2026/01/10/J20260110_000777/ABC_20240202_CLS.csv"
CHUNK_BYTES = 64 * 1024


async def chunks(size_bytes: int) -> AsyncIterator[bytes]:
    left = size_bytes
    while left:
        taken = min(left, CHUNK_BYTES)
        yield os.urandom(taken)
        left -= taken


async def write(storage: Storage, size_bytes: int, key: str = KEY, **metadata: str) -> StoredObject:
    return await storage.write(key, chunks(size_bytes), content_type="text/csv", metadata=metadata)


async def open_uploads(s3: S3Client, settings: Settings) -> int:
    assert settings.bucket is not None
    answer = await s3.list_multipart_uploads(Bucket=settings.bucket)
    return len(answer.get("Uploads", []))


async def objects(s3: S3Client, settings: Settings) -> list[str]:
    assert settings.bucket is not None
    answer = await s3.list_objects_v2(Bucket=settings.bucket)
    return [found.get("Key", "") for found in answer.get("Contents", [])]


@pytest.mark.parametrize("size_bytes", [0, 1, 100_000, PART_BYTES])
async def test_what_fits_one_part_takes_one_put_and_one_head(
    proxied: Storage, proxy: S3Proxy, settings: Settings, size_bytes: int
) -> None:
    stored = await write(proxied, size_bytes)
    assert stored.uri == f"s3://{settings.bucket}/{KEY}"
    assert stored.size_bytes == size_bytes
    assert [method for method, _ in proxy.calls] == ["PUT", "HEAD"]


@pytest.mark.parametrize(("size_bytes", "parts"), [(PART_BYTES + 1, 2), (3 * PART_BYTES, 3)])
async def test_what_does_not_fit_goes_in_parts_of_equal_size(
    proxied: Storage, proxy: S3Proxy, size_bytes: int, parts: int
) -> None:
    stored = await write(proxied, size_bytes)
    assert stored.size_bytes == size_bytes
    assert sum("partNumber=" in path for _, path in proxy.calls) == parts
    read = [chunk async for chunk in proxied.read(stored.uri)]
    assert sum(map(len, read)) == size_bytes


async def test_a_large_object_is_written_in_the_memory_of_a_few_parts(storage: Storage) -> None:
    await write(storage, 10)  # whatever is allocated once
    tracemalloc.start()
    try:
        stored = await write(storage, 8 * PART_BYTES)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert stored.size_bytes == 8 * PART_BYTES
    assert peak_bytes < 4 * PART_BYTES


async def test_an_upload_that_fails_half_way_leaves_nothing_behind(
    proxied: Storage, proxy: S3Proxy, s3: S3Client, settings: Settings
) -> None:
    proxy.refuse = part(2)
    with pytest.raises(Unavailable, match="UploadPart: ServiceUnavailable"):
        await write(proxied, 3 * PART_BYTES)
    assert await open_uploads(s3, settings) == 0
    assert await objects(s3, settings) == []


async def test_an_upload_whose_rows_fail_half_way_leaves_nothing_behind(
    storage: Storage, s3: S3Client, settings: Settings
) -> None:
    async def broken() -> AsyncIterator[bytes]:
        async for chunk in chunks(2 * PART_BYTES):
            yield chunk
        reason = "the source broke"
        raise ValueError(reason)

    with pytest.raises(ValueError, match="the source broke"):
        await storage.write(KEY, broken(), content_type="text/csv", metadata={})
    assert await open_uploads(s3, settings) == 0


@pytest.mark.parametrize("number", [1, 2])
async def test_an_upload_that_is_cancelled_leaves_nothing_behind(
    proxied: Storage, proxy: S3Proxy, s3: S3Client, settings: Settings, number: int
) -> None:
    proxy.stall = part(number)
    upload = asyncio.create_task(write(proxied, 3 * PART_BYTES))
    await proxy.stalled.wait()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert await open_uploads(s3, settings) == 0
    assert await objects(s3, settings) == []


async def test_an_upload_cancelled_before_its_id_is_known_leaves_nothing_behind(
    proxied: Storage, proxy: S3Proxy, s3: S3Client, settings: Settings
) -> None:
    proxy.stall = lambda request: request.method == "POST" and "uploads" in request.query
    upload = asyncio.create_task(write(proxied, 2 * PART_BYTES))
    await proxy.stalled.wait()
    upload.cancel()
    proxy.release.set()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert await open_uploads(s3, settings) == 0


async def test_a_truncated_object_is_detected(proxied: Storage, proxy: S3Proxy) -> None:
    proxy.truncate = puts
    with pytest.raises(Fault, match=r"was not stored whole: sent 1000 bytes, .* found 500 bytes"):
        await write(proxied, 1_000)


async def test_an_object_that_is_not_there_after_the_put_is_detected(
    proxied: Storage, proxy: S3Proxy
) -> None:
    proxy.refuse, proxy.refusal = lambda request: request.method == "HEAD", (404, "NoSuchKey")
    with pytest.raises(Fault, match="found nothing"):
        await write(proxied, 1_000)


async def test_a_failed_put_is_a_fault_without_secrets(proxied: Storage, proxy: S3Proxy) -> None:
    proxy.refuse = puts
    with pytest.raises(Unavailable, match=r"^storage answered PutObject: .* \(503") as raised:
        await write(proxied, 10)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("key", ["../../tenant-b/x", "exports/../x", "/x", "x//y", "a b", "ä", ""])
async def test_a_key_that_could_leave_its_prefix_is_refused(
    storage: Storage, s3: S3Client, settings: Settings, key: str
) -> None:
    with pytest.raises(InvalidInput):
        await write(storage, 1, key)
    assert await objects(s3, settings) == []


async def test_metadata_travels_whatever_it_holds(storage: Storage) -> None:
    stored = await write(storage, 1, name=" ä + 100% ", plain="J20260110_000777")
    assert stored.metadata == {"name": " ä + 100% ", "plain": "J20260110_000777"}


async def test_lines_are_read_across_chunks(storage: Storage) -> None:
    async def text() -> AsyncIterator[bytes]:
        for number in range(100_000):
            yield f"line {number}\r\n".encode()

    stored = await storage.write(KEY, text(), content_type="text/plain", metadata={})
    lines = [line async for line in storage.read_lines(stored.uri)]
    assert lines == [f"line {number}" for number in range(100_000)]


async def test_what_does_not_exist_is_said_plainly(storage: Storage, settings: Settings) -> None:
    uri = f"s3://{settings.bucket}/exports/none.csv"
    assert not await storage.exists(uri)
    with pytest.raises(NotFound):
        await anext(storage.read(uri))


async def test_a_bucket_that_is_missing_makes_storage_not_ready_until_it_is_there(
    s3: S3Client, settings: Settings
) -> None:
    other = settings.model_copy(update={"bucket": f"{settings.bucket}-b"})
    storage = Storage(s3, other)
    with pytest.raises(Unusable):
        await storage.ping()
    with pytest.raises(Unusable, match="NoSuchBucket"):
        await write(storage, 1)
    await s3.create_bucket(Bucket=f"{settings.bucket}-b")
    await storage.ping()


async def test_storage_that_is_away_is_unavailable(
    s3: S3Client, settings: Settings, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused_tcp_port}")
    async with Clients(settings).s3() as client:
        with pytest.raises(Unavailable, match="storage is away: EndpointConnectionError"):
            await Storage(client, settings).ping()
