"""The export kind on a real database and a real bucket."""

import asyncio
import csv
import datetime as dt
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from types_aiobotocore_s3 import S3Client

from consumer.processors.export import ExportProcessor
from consumer.processors.protocol import Resources, Work
from consumer.processors.running import OneByOne
from infra.database import Database
from infra.settings import Settings
from infra.storage import Storage
from schema.errors import Fault, NotFound, Refusal, Unavailable
from schema.export import EXPORT, ExportInput, ExportOptions
from schema.ids import uuid7
from schema.message import Trace
from schema.outcome import Failed, Outcome, Succeeded
from tests.claims import claim_of
from tests.integration.export.conftest import PART_BYTES
from tests.platform import Platform, eventually
from tests.stubs.s3_proxy import S3Proxy, part, puts

LEVELS = """
INSERT INTO index_level (index_key, effective_date, asof_indicator, line, level)
SELECT :index_key, CAST(:effective_date AS date), :indicator, n, n + 0.25
FROM generate_series(1, :lines) AS n RETURNING line
"""


@pytest.fixture
async def today(platform: Platform) -> dt.date:
    rows = await platform.rows("SELECT (now() AT TIME ZONE 'UTC')::date AS today")
    today: dt.date = rows[0].today
    return today


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
    return [found["Key"] for found in answer.get("Contents", [])]


def generated(outcome: Outcome) -> bool:
    assert isinstance(outcome, Succeeded)
    assert (outcome.artifact is None) == bool(outcome.reused)
    return outcome.reused is False


async def test_a_file_is_written_where_the_contract_says_and_as_csv(
    platform: Platform, settings: Settings, database: Database, storage: Storage
) -> None:
    await put_levels(platform, dt.date(2024, 2, 2), lines=2)
    async with processor(settings, database, storage) as export:
        outcome = await export.process(work_of(platform, 20240202))
    uri = (
        f"s3://{settings.bucket}/exports/2026/01/10/J20260110_000777/ABC_20240202_CLS.csv"
    )
    content = b"".join([chunk async for chunk in storage.read(uri)])
    assert content == (
        b"index_key,effective_date,asof_indicator,line,level\r\n"
        b"ABC,2024-02-02,CLS,1,1.25\r\n"
        b"ABC,2024-02-02,CLS,2,2.25\r\n"
    )
    stored = await storage.head(uri)
    assert stored is not None
    assert stored.metadata == {"correlation-id": "corr-1", "job-id": "J20260110_000777"}
    assert isinstance(outcome, Succeeded)
    assert outcome.result == {"s3Path": uri}
    assert outcome.artifact is not None
    assert outcome.artifact.natural_key == "ABC_20240202_CLS"
    assert (outcome.artifact.uri, outcome.artifact.size_bytes) == (uri, len(content))
    assert outcome.artifact.etag == stored.etag
    assert outcome.reused is False


@pytest.mark.parametrize(
    ("settings_say", "job_says", "registered", "age_days", "generates"),
    [
        # Off: generate, whatever is registered.
        ({"reuse_enabled": False}, {}, True, 400, True),
        ({}, {"reuse": {"enabled": False}}, True, 400, True),
        # On, but nothing registered.
        ({}, {}, False, 400, True),
        # effectiveDate > today - days: too young. The boundary itself may be reused.
        ({"reuse_days": 30}, {}, True, 29, True),
        ({"reuse_days": 30}, {}, True, 30, False),
        ({"reuse_days": 30}, {}, True, 31, False),
        ({"reuse_days": 0}, {}, True, 0, False),
        ({"reuse_days": 0}, {}, True, -1, True),
        # The job overrides the settings, each part of them by itself.
        ({"reuse_enabled": False}, {"reuse": {"enabled": True}}, True, 31, False),
        ({"reuse_enabled": False}, {"reuse": {"days": 0}}, True, 31, True),
        ({"reuse_days": 30}, {"reuse": {"days": 10}}, True, 20, False),
        ({"reuse_days": 30}, {"reuse": {"days": 40}}, True, 31, True),
        ({"reuse_days": 30}, {"reuse": {"enabled": True, "days": None}}, True, 29, True),
    ],
)
async def test_reuse(
    platform: Platform,
    settings: Settings,
    database: Database,
    storage: Storage,
    s3: S3Client,
    today: dt.date,
    settings_say: dict[str, Any],
    job_says: dict[str, Any],
    registered: bool,
    age_days: int,
    generates: bool,
) -> None:
    date = today - dt.timedelta(days=age_days)
    await put_levels(platform, date)
    earlier = f"s3://{settings.bucket}/exports/2025/01/01/J20250101_000001/ABC.csv"
    if registered:
        await register(platform, date, earlier)
    asked = settings.model_copy(update=settings_say)
    async with processor(asked, database, storage) as export:
        outcome = await export.process(work_of(platform, date, job_says))
    assert generated(outcome) is generates
    assert isinstance(outcome, Succeeded)
    assert (outcome.result["s3Path"] == earlier) is not generates
    assert len(await keys(s3, settings)) == (1 if generates else 0)


async def test_another_owner_s_file_is_not_reused(
    platform: Platform, settings: Settings, database: Database, storage: Storage
) -> None:
    await put_levels(platform, dt.date(2024, 2, 2))
    await register(platform, dt.date(2024, 2, 2), "s3://bucket/theirs.csv")
    other = Platform(database)
    async with processor(settings, database, storage) as export:
        assert generated(await export.process(work_of(other, 20240202)))


async def test_a_registered_file_that_vanished_is_made_anew_when_asked_to_verify(
    platform: Platform, settings: Settings, database: Database, storage: Storage, s3: S3Client
) -> None:
    date = dt.date(2024, 2, 2)
    await put_levels(platform, date)
    verifying = settings.model_copy(update={"reuse_verify": True})
    async with processor(verifying, database, storage) as export:
        await register(platform, date, f"s3://{settings.bucket}/exports/gone.csv")
        assert generated(await export.process(work_of(platform, 20240202)))
        found = await storage.head(f"s3://{settings.bucket}/{(await keys(s3, settings))[0]}")
        assert found is not None
        await platform.rows(
            "UPDATE artifact SET uri = :uri, size_bytes = :size, etag = :etag RETURNING uri",
            uri=found.uri,
            size=found.size_bytes,
            etag=found.etag,
        )
        assert not generated(await export.process(work_of(platform, 20240202)))


async def test_inputs_that_run_together_share_one_look_up(
    platform: Platform, settings: Settings, database: Database, storage: Storage
) -> None:
    date = dt.date(2024, 2, 2)
    await register(platform, date, "s3://bucket/earlier.csv")
    asked = 0
    fetch = database.fetch

    class Counting(Database):
        def __init__(self) -> None: ...

        async def fetch(self, statement: Any) -> Any:
            nonlocal asked
            asked += 1
            return await fetch(statement)

    async with processor(settings, Counting(), storage) as export:
        outcomes = await asyncio.gather(
            *(export.process(work_of(platform, 20240202)) for _ in range(16))
        )
    assert not any(map(generated, outcomes))
    assert asked == 1


async def test_a_cancelled_input_does_not_take_the_look_up_of_its_neighbours_along(
    platform: Platform, settings: Settings, database: Database, storage: Storage
) -> None:
    await register(platform, dt.date(2024, 2, 2), "s3://bucket/earlier.csv")
    async with processor(settings, database, storage) as export:
        tasks = [asyncio.create_task(export.process(work_of(platform, 20240202))) for _ in range(4)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks[0].cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert all(isinstance(outcome, Succeeded) for outcome in outcomes[1:])


async def test_no_rows_is_not_found_and_writes_nothing(
    platform: Platform, settings: Settings, database: Database, storage: Storage, s3: S3Client
) -> None:
    async with processor(settings, database, storage) as export:
        with pytest.raises(
            NotFound, match="no rows for indexKey ABC, effectiveDate 20240202, asofindicator CLS"
        ):
            await export.process(work_of(platform, 20240202))
    assert await keys(s3, settings) == []


async def test_text_that_would_be_a_formula_is_inert_and_numbers_are_not_touched(
    platform: Platform, settings: Settings, database: Database, storage: Storage
) -> None:
    sql = (
        "SELECT CAST('=1+1' AS text) AS formula, CAST(-1.5 AS numeric) AS number, "
        "CAST(:index_key AS text) AS a, CAST(:effective_date AS date) AS b, "
        "CAST(:asof_indicator AS text) AS c, CAST(NULL AS text) AS nothing;"
    )
    custom = settings.model_copy(update={"export_sql": sql})
    async with processor(custom, database, storage) as export:
        outcome = await export.process(work_of(platform, 20240202))
    assert isinstance(outcome, Succeeded)
    lines = [line async for line in storage.read_lines(outcome.result["s3Path"])]
    assert lines == ["formula,number,a,b,c,nothing", "'=1+1,-1.5,ABC,2024-02-02,CLS,"]


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


async def test_a_failed_upload_gives_nothing_to_register_and_the_next_attempt_does(
    platform: Platform, settings: Settings, database: Database, proxied: Storage, proxy: S3Proxy
) -> None:
    await put_levels(platform, dt.date(2024, 2, 2))
    claim = claim_of(
        EXPORT.name,
        {"indexKey": "ABC", "effectiveDate": 20240202, "asofindicator": "CLS"},
        owner_id=platform.owner_id,
    )
    async with processor(settings, database, proxied) as export:
        runner = OneByOne(EXPORT, export)
        proxy.refuse = puts
        (failed,) = await runner.run(claim, claim.inputs)
        assert isinstance(failed, Failed)
        assert failed.error_class == "Unavailable"
        proxy.refuse, proxy.truncate = None, puts
        (failed,) = await runner.run(claim, claim.inputs)
        assert isinstance(failed, Failed)
        assert "was not stored whole" in failed.message
        proxy.truncate = None
        (outcome,) = await runner.run(claim, claim.inputs)
    assert generated(outcome)


async def test_running_an_input_again_leaves_one_object(
    platform: Platform, settings: Settings, database: Database, storage: Storage, s3: S3Client
) -> None:
    await put_levels(platform, dt.date(2024, 2, 2))
    async with processor(settings, database, storage) as export:
        first = await export.process(work_of(platform, 20240202))
        again = await export.process(work_of(platform, 20240202, attempt=2))
    assert first == again
    assert len(await keys(s3, settings)) == 1


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
