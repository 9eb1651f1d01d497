"""What tests of exports share: rows to export, work to do, and what came of it."""

import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from types_aiobotocore_s3 import S3Client

from consumer.processors.export import ExportProcessor
from consumer.processors.protocol import Resources, Work
from infra.database import Database
from infra.settings import Settings
from infra.storage import Storage
from schema.export import ExportInput, ExportOptions
from schema.ids import uuid7
from schema.message import Trace
from schema.outcome import Outcome, Succeeded
from tests.platform import Platform

LEVELS = """
INSERT INTO index_level (index_key, effective_date, asof_indicator, line, level)
SELECT :index_key, CAST(:effective_date AS date), :indicator, n, n + 0.25
FROM generate_series(1, :lines) AS n RETURNING line
"""


@asynccontextmanager
async def processor(
    settings: Settings, database: Database, storage: Storage
) -> AsyncIterator[ExportProcessor]:
    made = ExportProcessor(Resources(settings, database, storage))
    try:
        await made.start()
        yield made
    finally:
        await made.close()


def work_of(
    platform: Platform, date: int | dt.date, options: dict[str, Any] | None = None, **changes: Any
) -> Work:
    number = int(f"{date:%Y%m%d}") if isinstance(date, dt.date) else date
    values: dict[str, Any] = {
        "body": ExportInput(indexKey="ABC", effectiveDate=number, asofindicator="CLS"),
        "options": ExportOptions.model_validate(options or {}),
        "job_id": uuid7(),
        "job_key": "J20260110_000777",
        "owner_id": platform.owner_id,
        "request_date": dt.date(2026, 1, 10),
        "ordinal": 0,
        "attempt": 1,
        "trace": Trace("corr-1"),
    }
    return Work(**(values | changes))


async def put_levels(
    platform: Platform, date: dt.date, *, lines: int = 3, index_key: str = "ABC"
) -> None:
    await platform.rows(
        LEVELS, index_key=index_key, effective_date=date, indicator="CLS", lines=lines
    )


async def register(platform: Platform, date: dt.date, uri: str, etag: str = "e") -> None:
    await platform.rows(
        "INSERT INTO artifact (owner_id, kind, natural_key, uri, size_bytes, etag, job_id, ordinal)"
        " VALUES (:owner, 'export', :key, :uri, 7, :etag, :job, 0) RETURNING uri",
        owner=platform.owner_id,
        key=f"ABC_{date:%Y%m%d}_CLS",
        uri=uri,
        etag=etag,
        job=uuid7(),
    )


async def keys(s3: S3Client, settings: Settings) -> list[str]:
    assert settings.bucket is not None
    answer = await s3.list_objects_v2(Bucket=settings.bucket)
    return [found.get("Key", "") for found in answer.get("Contents", [])]


def generated(outcome: Outcome) -> bool:
    assert isinstance(outcome, Succeeded)
    assert (outcome.artifact is None) == bool(outcome.reused)
    return outcome.reused is False
