"""What an export writes and says, on a real database and a real bucket."""

import datetime as dt

import pytest
from types_aiobotocore_s3 import S3Client

from consumer.processors.running import OneByOne
from infra.database import Database
from infra.settings import Settings
from infra.storage import Storage
from schema.errors import NotFound
from schema.export import EXPORT
from schema.outcome import Failed, Succeeded
from tests.claims import claim_of
from tests.integration.export.exports import generated, keys, processor, put_levels, work_of
from tests.platform import Platform
from tests.stubs.s3_proxy import S3Proxy, puts


async def test_a_file_is_written_where_the_contract_says_and_as_csv(
    platform: Platform, settings: Settings, database: Database, storage: Storage
) -> None:
    await put_levels(platform, dt.date(2024, 2, 2), lines=2)
    async with processor(settings, database, storage) as export:
        outcome = await export.process(work_of(platform, 20240202))
    uri = f"s3://{settings.bucket}/exports/2026/01/10/J20260110_000777/ABC_20240202_CLS.csv"
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
