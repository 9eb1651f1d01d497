"""Reading what is exported: in constant memory, within limits, and never across a call to S3."""

import asyncio
import csv
import datetime as dt
import io

import pytest
from types_aiobotocore_s3 import S3Client

from infra.database import Database
from infra.settings import Settings
from infra.storage import Storage
from schema.errors import Fault, Refusal, Unavailable
from schema.outcome import Succeeded
from tests.integration.export.conftest import PART_BYTES
from tests.integration.export.exports import (
    generated,
    keys,
    processor,
    put_levels,
    work_of,
)
from tests.platform import Platform, eventually
from tests.stubs.s3_proxy import S3Proxy, part


async def test_a_large_file_goes_in_parts_and_no_transaction_is_open_meanwhile(
    platform: Platform,
    settings: Settings,
    database: Database,
    proxied: Storage,
    proxy: S3Proxy,
) -> None:
    lines = 450_000
    await put_levels(platform, dt.date(2024, 2, 2), lines=lines)
    proxy.stall = part(2)
    async with processor(settings, database, proxied) as export:
        exporting = asyncio.create_task(export.process(work_of(platform, 20240202)))
        await proxy.stalled.wait()
        sessions = await platform.rows(
            "SELECT state FROM pg_stat_activity WHERE application_name = 'haulage-export'"
        )
        proxy.release.set()
        outcome = await exporting
    assert {row.state for row in sessions} == {"idle"}
    assert sum("partNumber=" in path for _, path in proxy.calls) > 2
    assert isinstance(outcome, Succeeded)
    assert outcome.artifact is not None
    assert outcome.artifact.size_bytes > 2 * PART_BYTES
    content = b"".join([chunk async for chunk in proxied.read(outcome.artifact.uri)])
    rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
    assert len(rows) == lines + 1
    assert [int(row[3]) for row in rows[1:]] == list(range(1, lines + 1))


async def test_a_file_over_the_limit_is_refused_before_any_upload(
    platform: Platform, settings: Settings, database: Database, storage: Storage, s3: S3Client
) -> None:
    await put_levels(platform, dt.date(2024, 2, 2), lines=100)
    small = settings.model_copy(update={"export_max_bytes": 1_000})
    async with processor(small, database, storage) as export:
        with pytest.raises(Refusal, match="HAULAGE_EXPORT_MAX_BYTES"):
            await export.process(work_of(platform, 20240202))
    assert await keys(s3, settings) == []


async def test_reads_beyond_the_number_of_streams_wait_for_their_turn(
    platform: Platform, settings: Settings, database: Database, storage: Storage, s3: S3Client
) -> None:
    for number in range(12):
        await put_levels(platform, dt.date(2024, 1, 1) + dt.timedelta(days=number))
    narrow = settings.model_copy(
        update={"export_streams": 1, "database_pool_timeout_seconds": 0.05}
    )
    async with processor(narrow, database, storage) as export:
        outcomes = await asyncio.gather(
            *(
                export.process(work_of(platform, dt.date(2024, 1, 1) + dt.timedelta(days=number)))
                for number in range(12)
            )
        )
    assert all(map(generated, outcomes))
    assert len(await keys(s3, settings)) == 12


async def test_a_source_that_is_away_at_start_is_a_fault_until_it_is_back(
    platform: Platform,
    settings: Settings,
    database: Database,
    storage: Storage,
    unused_tcp_port: int,
) -> None:
    away = settings.model_copy(
        update={"export_database_url": f"postgresql://postgres@127.0.0.1:{unused_tcp_port}/x"}
    )
    async with processor(away, database, storage) as export:
        with pytest.raises(Unavailable):
            await export.process(work_of(platform, 20240202))


async def test_rows_can_come_from_another_database(
    platform: Platform, settings: Settings, database: Database, storage: Storage
) -> None:
    elsewhere = settings.database_url.rsplit("/", 1)[0] + "/postgres"
    sql = "SELECT :index_key AS k, :effective_date AS d, :asof_indicator AS i, current_database()"
    custom = settings.model_copy(update={"export_database_url": elsewhere, "export_sql": sql})
    async with processor(custom, database, storage) as export:
        outcome = await export.process(work_of(platform, 20240202))
    assert isinstance(outcome, Succeeded)
    lines = [line async for line in storage.read_lines(outcome.result["s3Path"])]
    assert lines[1] == "ABC,2024-02-02,CLS,postgres"


async def test_a_full_disk_is_a_fault(
    platform: Platform,
    settings: Settings,
    database: Database,
    storage: Storage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await put_levels(platform, dt.date(2024, 2, 2), lines=60_000)
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    async with processor(settings, database, storage) as export:
        with pytest.raises(Fault, match="no room to spool an export in /nowhere"):
            await export.process(work_of(platform, 20240202))


async def test_the_database_is_not_asked_to_hold_a_transaction_after_a_cancelled_read(
    platform: Platform, settings: Settings, database: Database, storage: Storage
) -> None:
    sql = (
        "SELECT pg_sleep(30), CAST(:index_key AS text), CAST(:effective_date AS date), "
        "CAST(:asof_indicator AS text)"
    )
    slow = settings.model_copy(update={"export_sql": sql})
    running = "SELECT state FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"

    async def is_running() -> bool:
        return [row.state for row in await platform.rows(running)] == ["active"]

    async def is_gone() -> bool:
        return not await platform.rows(running)

    async with processor(slow, database, storage) as export:
        task = asyncio.create_task(export.process(work_of(platform, 20240202)))
        await eventually(is_running)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(is_gone, timeout_seconds=5)
