"""Objects in S3: written in constant memory, and believed only after S3 has shown them to us.

``write`` returns after a HEAD confirmed the size and the ETag, so that what is registered
exists. An upload that fails or is cancelled leaves nothing behind that costs money; where even
that fails, the bucket's rule for incomplete uploads cleans up.
"""

from __future__ import annotations

import asyncio
import base64
import io
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
from botocore.exceptions import ClientError

from infra.clients import speaking_plainly
from infra.object_names import checked_key, decoded, encoded, split_uri, uri_of
from schema.errors import Fault, HaulageError, Misconfigured, NotFound, Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_s3.type_defs import CompletedPartTypeDef

    from infra.settings import Settings

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MOST_PARTS = 10_000
_READ_BYTES = 256 * 1024
_ABORT_SECONDS = 10.0
_MISSING = ("404", "NoSuchKey", "NotFound")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object that S3 has, as S3 describes it."""

    uri: str
    size_bytes: int
    etag: str
    metadata: Mapping[str, str] = field(default_factory=dict)


class Storage:
    """One bucket to write to; reads any bucket that a URI names."""

    def __init__(self, client: S3Client, settings: Settings) -> None:
        if settings.bucket is None:
            raise Misconfigured("set HAULAGE_BUCKET: objects are written there")
        self._client = client
        self._bucket = settings.bucket
        self._part_bytes = settings.export_part_bytes

    async def ping(self) -> None:
        """Return when the bucket is there and open to us; else raise ``Unavailable``."""
        with speaking_plainly("storage"):
            await self._client.head_bucket(Bucket=self._bucket)

    async def write(
        self,
        key: str,
        chunks: AsyncIterator[bytes],
        *,
        content_type: str,
        metadata: Mapping[str, str],
    ) -> StoredObject:
        """Write an object and verify it; holds about two parts in memory, whatever its size.

        Raises ``Unavailable`` when S3 is away and ``Fault`` when what it stored is not whole.
        """
        checked_key(key)
        headers = encoded(metadata)
        parts = _parts(chunks, self._part_bytes)
        first, is_last = await anext(parts)
        if is_last:
            with speaking_plainly("storage"):
                answer = await self._client.put_object(
                    Bucket=self._bucket, Key=key, Body=_body(first), ContentType=content_type,
                    Metadata=headers, ContentLength=len(first), ChecksumCRC32=_crc32(first),
                )  # fmt: skip
                size_bytes, etag = len(first), answer["ETag"]
        else:
            upload_id = await self._begin(key, content_type, headers)
            taken = [first]  # handed over, so that nobody here keeps it until the end
            del first
            try:
                size_bytes, etag = await self._multipart(key, upload_id, taken, parts)
            except BaseException:
                await self._abort(key, upload_id)
                raise
        return await self._verified(uri_of(self._bucket, key), size_bytes, etag.strip('"'))

    async def head(self, uri: str) -> StoredObject | None:
        """Describe an object as S3 has it now; None when it is gone."""
        bucket, key = split_uri(uri)
        with speaking_plainly("storage"):
            try:
                answer = await self._client.head_object(Bucket=bucket, Key=key)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") in _MISSING:
                    return None
                raise
            etag = answer["ETag"].strip('"')
            return StoredObject(uri, answer["ContentLength"], etag, decoded(answer["Metadata"]))

    async def exists(self, uri: str) -> bool:
        """Say whether S3 has the object now."""
        return await self.head(uri) is not None

    async def read(self, uri: str) -> AsyncIterator[bytes]:
        """Give an object's bytes, some at a time; raise ``NotFound`` when it is gone."""
        bucket, key = split_uri(uri)
        with speaking_plainly("storage"):
            try:
                answer = await self._client.get_object(Bucket=bucket, Key=key)
            except self._client.exceptions.NoSuchKey as error:
                raise NotFound(f"{uri} does not exist") from error
            body = answer["Body"]
        async with body:
            while True:
                with speaking_plainly("storage"):
                    chunk = await body.read(_READ_BYTES)
                if not chunk:
                    return
                yield chunk

    async def read_lines(self, uri: str) -> AsyncIterator[str]:
        """Give an object's lines of UTF-8 text, without their ends."""
        pending = b""
        async for chunk in self.read(uri):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                yield line.removesuffix(b"\r").decode()
        if pending:
            yield pending.decode()

    async def _verified(self, uri: str, size_bytes: int, etag: str) -> StoredObject:
        found = await self.head(uri)
        if found is None or (found.size_bytes, found.etag) != (size_bytes, etag):
            seen = "nothing" if found is None else f"{found.size_bytes} bytes, {found.etag}"
            reason = f"{uri} was not stored whole: sent {size_bytes} bytes, {etag}; found {seen}"
            raise Fault(reason)
        return found

    async def _begin(self, key: str, content_type: str, headers: Mapping[str, str]) -> str:
        async def begin() -> str:
            with speaking_plainly("storage"):
                answer = await self._client.create_multipart_upload(
                    Bucket=self._bucket, Key=key, ContentType=content_type, Metadata=headers,
                    ChecksumAlgorithm="CRC32",
                )  # fmt: skip
                return answer["UploadId"]

        # Cancelled half-way S3 may know of an upload that we do not: so learn its id, then leave.
        begun = asyncio.ensure_future(begin())
        try:
            return await asyncio.shield(begun)
        except asyncio.CancelledError:
            await self._abort(key, await begun)
            raise

    async def _multipart(
        self, key: str, upload_id: str, taken: list[bytes], parts: AsyncIterator[tuple[bytes, bool]]
    ) -> tuple[int, str]:
        done: list[CompletedPartTypeDef] = []
        size_bytes = 0
        part, is_last = taken.pop(), False
        while True:
            number = len(done) + 1
            if number > MOST_PARTS:
                raise Refusal(f"over {MOST_PARTS} parts: raise HAULAGE_EXPORT_PART_BYTES")
            checksum = _crc32(part)
            with speaking_plainly("storage"):
                answer = await self._client.upload_part(
                    Bucket=self._bucket, Key=key, UploadId=upload_id, PartNumber=number,
                    Body=_body(part), ContentLength=len(part), ChecksumCRC32=checksum,
                )  # fmt: skip
                etag = answer["ETag"]
            done.append({"PartNumber": number, "ETag": etag, "ChecksumCRC32": checksum})
            size_bytes += len(part)
            if is_last:
                break
            del part
            part, is_last = await anext(parts)
        with speaking_plainly("storage"):
            completed = await self._client.complete_multipart_upload(
                Bucket=self._bucket, Key=key, UploadId=upload_id, MultipartUpload={"Parts": done}
            )
            return size_bytes, completed["ETag"]

    async def _abort(self, key: str, upload_id: str) -> None:
        async def abort() -> None:
            async with asyncio.timeout(_ABORT_SECONDS):
                with speaking_plainly("storage"), suppress(self._client.exceptions.NoSuchUpload):
                    await self._client.abort_multipart_upload(
                        Bucket=self._bucket, Key=key, UploadId=upload_id
                    )

        # In a task of its own, so that a second cancellation does not cut it short.
        aborting = asyncio.ensure_future(abort())
        try:
            await asyncio.shield(aborting)
        except (HaulageError, TimeoutError) as error:
            log.warning("storage.upload_left_open", key=key, upload=upload_id, error=str(error))


async def _parts(
    chunks: AsyncIterator[bytes], part_bytes: int
) -> AsyncIterator[tuple[bytes, bool]]:
    """Regroup chunks into parts of one size; the last, and it alone, says that it is the last."""
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        while len(buffer) > part_bytes:
            with memoryview(buffer) as view:
                part = bytes(view[:part_bytes])
            del buffer[:part_bytes]
            yield part, False
            del part
    yield bytes(buffer), True


def _body(part: bytes) -> io.BytesIO:
    # aiohttp writes bytes in one go and a file in pieces, between which other tasks run.
    return io.BytesIO(part)


def _crc32(part: bytes) -> str:
    return base64.b64encode(zlib.crc32(part).to_bytes(4, "big")).decode("ascii")
