"""The ``export`` kind: reuse an earlier file, or write one and say where it is.

A file is read whole into a spool before its upload begins: no transaction is open while we talk
to S3, so a slow upload holds up neither the pool nor vacuum. The object is verified before this
returns, and registered by the transaction that settles the input.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from consumer.processors import csv_text
from consumer.processors.export_source import ExportSource
from consumer.processors.reuse import Registry, may_reuse
from consumer.processors.spool import Spool
from schema.errors import InvalidInput, Misconfigured, NotFound, Refusal, Unavailable
from schema.export import EXPORT, ExportInput, ExportOptions
from schema.outcome import Artifact, Outcome, Succeeded

if TYPE_CHECKING:
    import datetime as dt

    from consumer.processors.protocol import Resources, Work
    from infra.settings import Settings

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_NO_BUCKET = "set HAULAGE_BUCKET: exports are written there"


class ExportProcessor:
    """Makes the CSV file of one (indexKey, effectiveDate, asofindicator).

    Running an input again writes the same key again, so that a repeat leaves one object.
    """

    def __init__(self, resources: Resources) -> None:
        if resources.storage is None:
            raise Misconfigured(_NO_BUCKET)
        self._settings = resources.settings
        self._storage = resources.storage
        self._registry = Registry(resources.database, kind=EXPORT.name)
        self._source = ExportSource.from_settings(resources.settings)
        self._reads = asyncio.Semaphore(resources.settings.export_streams)
        self._large_uploads = asyncio.Semaphore(resources.settings.export_streams)
        self._checking = asyncio.Lock()
        self._is_checked = False

    @staticmethod
    def check_settings(settings: Settings) -> None:
        """Raise ``Misconfigured`` where the settings are enough to say that none can be made."""
        if settings.bucket is None:
            raise Misconfigured(_NO_BUCKET)
        ExportSource.from_settings(settings)

    async def start(self) -> None:
        """Check the export SQL; a source that is away is checked when the first input comes."""
        try:
            await self._check_once()
        except Unavailable as error:
            log.warning("export.source_away", error=str(error))

    async def close(self) -> None:
        """Close the connections to the source."""
        await self._source.close()

    async def process(self, work: Work) -> Outcome:
        """Give the path of the file: an earlier one where the job allows it, else a new one."""
        body, options = work.body, work.options
        if not isinstance(body, ExportInput) or not isinstance(options, ExportOptions):
            raise InvalidInput("not an input of kind export")
        earlier = await self._reusable(work, body, options)
        if earlier is not None:
            return Succeeded({"s3Path": earlier.uri}, reused=True)
        artifact = await self._generate(work, body)
        return Succeeded({"s3Path": artifact.uri}, artifact=artifact, reused=False)

    async def _reusable(
        self, work: Work, body: ExportInput, options: ExportOptions
    ) -> Artifact | None:
        settings, asked = self._settings, options.reuse
        enabled = settings.reuse_enabled if asked.enabled is None else asked.enabled
        if not enabled:
            return None
        days = settings.reuse_days if asked.days is None else asked.days
        registered = await self._registry.find(work.owner_id, body.natural_key())
        if not may_reuse(body.date(), days=days, registered=registered):
            return None
        artifact = registered.artifact
        if artifact is not None and settings.reuse_verify and not await self._is_there(artifact):
            log.warning("export.file_vanished", uri=artifact.uri)
            return None
        return artifact

    async def _is_there(self, artifact: Artifact) -> bool:
        found = await self._storage.head(artifact.uri)
        expected = (artifact.size_bytes, artifact.etag)
        return found is not None and (found.size_bytes, found.etag) == expected

    async def _generate(self, work: Work, body: ExportInput) -> Artifact:
        async with Spool() as spool:
            await self._read(body, spool)
            if spool.size_bytes > self._settings.export_part_bytes:
                async with self._large_uploads:
                    return await self._upload(work, body, spool)
            return await self._upload(work, body, spool)

    async def _read(self, body: ExportInput, spool: Spool) -> None:
        await self._check_once()
        header: tuple[str, ...] | None = None
        async with self._reads, self._source.rows(body) as batches:
            async for rows in batches:
                is_first, header = header is None, rows[0]._fields
                await spool.add(csv_text.encode(rows, header=header if is_first else None))
                if spool.size_bytes > self._settings.export_max_bytes:
                    limit = self._settings.export_max_bytes
                    reason = f"the file exceeds HAULAGE_EXPORT_MAX_BYTES ({limit} bytes)"
                    raise Refusal(reason)
        if header is None:
            reason = (
                f"no rows for indexKey {body.indexKey}, effectiveDate {body.effectiveDate}, "
                f"asofindicator {body.asofindicator}"
            )
            raise NotFound(reason)

    async def _upload(self, work: Work, body: ExportInput, spool: Spool) -> Artifact:
        name = body.natural_key()
        stored = await self._storage.write(
            object_key(work.request_date, work.job_key, name),
            spool.chunks(),
            content_type=csv_text.CONTENT_TYPE,
            metadata={"correlation-id": work.trace.correlation_id, "job-id": work.job_key},
        )
        return Artifact(name, stored.uri, stored.size_bytes, stored.etag)

    async def _check_once(self) -> None:
        if self._is_checked:
            return
        async with self._checking:
            if not self._is_checked:
                await self._source.check()
                self._is_checked = True


def object_key(request_date: dt.date, job_key: str, name: str) -> str:
    """Give the key of a file; storage checks that it stays where it should."""
    return f"exports/{request_date:%Y/%m/%d}/{job_key}/{name}.csv"
