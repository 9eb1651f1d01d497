"""When an earlier file serves, and when a new one is made."""

import asyncio
import datetime as dt
from typing import Any

import pytest
from types_aiobotocore_s3 import S3Client

from infra.database import Database
from infra.settings import Settings
from infra.storage import Storage
from schema.outcome import Succeeded
from tests.integration.export.exports import (
    generated,
    keys,
    processor,
    put_levels,
    register,
    work_of,
)
from tests.platform import Platform


@pytest.fixture
async def today(platform: Platform) -> dt.date:
    rows = await platform.rows("SELECT (now() AT TIME ZONE 'UTC')::date AS today")
    today: dt.date = rows[0].today
    return today


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
