"""A file is registered by the commit that settles its input: not before, and not without it."""

import asyncio
import datetime as dt

from consumer.processors.loading import load_runners
from consumer.processors.protocol import Resources
from infra.database import Database
from infra.queue.outbox import OutboxQueue
from infra.queue.protocol import Claim
from infra.settings import Settings
from infra.settle import Settlement, settle
from infra.storage import Storage
from infra.wakeup import Listener
from schema.export import EXPORT
from schema.outcome import Backoff, Outcome
from tests.integration.export.exports import put_levels
from tests.platform import Platform
from tests.stubs.s3_proxy import S3Proxy, puts

BODY = {"indexKey": "ABC", "effectiveDate": 20240202, "asofindicator": "CLS"}
ABSENT = BODY | {"indexKey": "NONE"}


async def claim(settings: Settings, database: Database) -> Claim:
    queue = OutboxQueue(
        database,
        Listener(settings, name="test"),
        worker="worker",
        kinds=[EXPORT.name],
        lease_seconds=30,
        poll_floor_seconds=5,
    )
    (claimed,) = await queue.claim(1, asyncio.Event())
    return claimed


async def commit(database: Database, claimed: Claim, outcomes: list[Outcome]) -> None:
    await settle(
        database,
        "worker",
        [
            Settlement(claimed, input_, outcome, 1)
            for input_, outcome in zip(claimed.inputs, outcomes, strict=True)
        ],
        backoffs={EXPORT.name: Backoff(base_seconds=0.001)},
        jitter=lambda: 0.0,
    )


async def run(settings: Settings, database: Database, storage: Storage) -> list[Outcome]:
    claimed = await claim(settings, database)
    resources = Resources(settings, database, storage)
    async with load_runners({EXPORT.name: EXPORT}, resources, asyncio.Event()) as runners:
        runner = runners[EXPORT.name]
        outcomes = [(await runner.run(claimed, [input_]))[0] for input_ in claimed.inputs]
    await commit(database, claimed, outcomes)
    return outcomes


async def registered(platform: Platform) -> list[str]:
    return [row.uri for row in await platform.rows("SELECT uri FROM artifact")]


async def test_the_first_job_generates_and_the_next_reuses(
    platform: Platform, settings: Settings, database: Database, storage: Storage
) -> None:
    await put_levels(platform, dt.date(2024, 2, 2))
    first = await platform.submit([BODY, ABSENT], kind=EXPORT.name)
    await run(settings, database, storage)
    job = await platform.job(first)
    assert (job.status, job.files_generated, job.files_reused) == ("COMPLETED", 1, 0)
    assert (job.succeeded, job.not_found) == (1, 1)
    (uri,) = await registered(platform)
    assert uri.startswith(f"s3://{settings.bucket}/exports/{job.request_date:%Y/%m/%d}/{job.key}/")

    second = await platform.submit([BODY], kind=EXPORT.name)
    await run(settings, database, storage)
    job = await platform.job(second)
    assert (job.status, job.files_generated, job.files_reused) == ("COMPLETED", 0, 1)
    (result,) = await platform.rows("SELECT result FROM input WHERE job_id = :id", id=second)
    assert result.result == {"s3Path": uri} or uri in str(result.result)
    assert await registered(platform) == [uri]


async def test_an_upload_that_failed_registers_nothing(
    platform: Platform, settings: Settings, database: Database, proxied: Storage, proxy: S3Proxy
) -> None:
    await put_levels(platform, dt.date(2024, 2, 2))
    job_id = await platform.submit([BODY], kind=EXPORT.name)
    proxy.refuse = puts
    await run(settings, database, proxied)
    assert await registered(platform) == []
    assert await platform.statuses(job_id) == {"RETRY_WAIT": 1}
    proxy.refuse = None
    await run(settings, database, proxied)
    assert len(await registered(platform)) == 1
    assert await platform.statuses(job_id) == {"SUCCEEDED": 1}


async def test_a_commit_that_failed_leaves_an_object_that_the_next_attempt_takes_up(
    platform: Platform, settings: Settings, database: Database, storage: Storage
) -> None:
    await put_levels(platform, dt.date(2024, 2, 2))
    await platform.submit([BODY], kind=EXPORT.name)
    claimed = await claim(settings, database)
    resources = Resources(settings, database, storage)
    async with load_runners({EXPORT.name: EXPORT}, resources, asyncio.Event()) as runners:
        lost = await runners[EXPORT.name].run(claimed, claimed.inputs)
        # The worker is gone before its commit; its lease lapses, and the entry is taken again.
        await platform.rows(
            "UPDATE outbox SET state = 'PENDING', locked_until = NULL, locked_by = NULL"
            " RETURNING id"
        )
        again = await claim(settings, database)
        outcomes = list(await runners[EXPORT.name].run(again, again.inputs))
    assert outcomes == list(lost)
    await commit(database, claimed, list(lost))  # fenced: the late one changes nothing
    assert await registered(platform) == []
    await commit(database, again, outcomes)
    (uri,) = await registered(platform)
    assert await storage.exists(uri)
