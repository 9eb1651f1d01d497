"""Fail-fast and what a job tolerates; each death as an event."""

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from infra.database import Database
from infra.queue.protocol import Claim, ClaimedInput
from infra.settle import Settlement, settle
from infra.wakeup import Listener, Notifier
from schema.outcome import Backoff, Outcome, Refused, Succeeded
from schema.statements.control import pause_job, resume_job
from tests.deliveries import Delivery, open_delivery
from tests.platform import KIND, Platform, Recorder, eventually, settings_for
from tests.steps import claim_all, control, settle_as, sweep

DEAD = Refused("Bad", "no good")


@pytest.mark.parametrize(("tolerated", "deaths", "status"), [
    (0, 1, "FAILED"), (2, 2, "RUNNING"), (2, 3, "FAILED"),
])  # fmt: skip
async def test_a_job_fails_at_once_when_more_died_than_it_tolerates(
    platform: Platform, database: Database, tolerated: int, deaths: int, status: str
) -> None:
    job_id = await platform.submit(30, fail_fast=True, tolerated=tolerated)
    first, *others = await claim_all(database)
    await settle_as(database, first, *[DEAD] * deaths)
    job = await platform.job(job_id)
    assert (job.status, job.sweeping) == (status, status == "FAILED")
    await sweep(database)
    job = await platform.job(job_id)
    assert (job.dlq, job.cancelled) == (deaths, 30 - deaths if status == "FAILED" else 0)
    late = await settle_as(database, others[0], *[Succeeded()] * 10)
    assert all(line.accepted for line in late) == (status == "RUNNING")
    if status == "FAILED":
        rows = await platform.rows(
            "SELECT DISTINCT error_class, error_message FROM input WHERE status = 'CANCELLED'"
        )
        assert [row.error_class for row in rows] == ["FailFast"]
        assert f"more than {tolerated} inputs" in rows[0].error_message
    await platform.check_consistency()


async def test_an_outcome_says_that_it_ended_its_job_before_the_others_had_theirs(
    platform: Platform, database: Database
) -> None:
    await platform.submit(20, fail_fast=True)
    first, second = await claim_all(database)
    ended = await settle_as(database, first, Succeeded(), DEAD)
    assert [(line.accepted, line.ended_early) for line in ended] == [(True, True)] * 2
    late = await settle_as(database, second, Succeeded())
    assert [(line.accepted, line.ended_early) for line in late] == [(True, False)]
    await platform.submit(1, fail_fast=True)
    (last,) = await claim_all(database)
    assert not any(line.ended_early for line in await settle_as(database, last, DEAD))


async def test_a_job_that_fails_fast_is_swept_without_waiting_for_the_next_round(
    platform: Platform, database: Database, database_url: str
) -> None:
    """Consumers and dispatchers hear of it through the database, as separate processes do."""

    async def only_the_first_dies(_: Claim, input_: ClaimedInput) -> Outcome:
        if input_.ordinal:
            await asyncio.Event().wait()
        return DEAD

    settings = settings_for(database_url, maintenance_interval_seconds=60)
    listener, notifier = Listener(settings, name="test"), Notifier(database, enabled=True)
    with capture_logs() as lines:
        async with (
            open_delivery("outbox", settings, database, listener) as delivery,
            asyncio.TaskGroup() as group,
        ):
            side = [group.create_task(each.run()) for each in (listener, notifier)]
            async with delivery.dispatching():
                await eventually(lambda: _is_listening(lines))
                async with delivery.consuming(
                    Recorder(only_the_first_dies), tell=notifier.notify_control
                ):
                    job_id = await platform.submit(30, fail_fast=True)
                    notifier.notify()
                    await eventually(lambda: _is_swept(platform, job_id), timeout_seconds=30)
            for task in side:
                task.cancel()
    assert await platform.statuses(job_id) == {"DLQ": 1, "CANCELLED": 29}


def _is_listening(lines: list[Any]) -> bool:
    return any(line["event"] == "listener.listening" for line in lines)


async def _is_swept(platform: Platform, job_id: UUID) -> bool:
    job = await platform.job(job_id)
    return job.status == "FAILED" and not job.sweeping


async def test_without_fail_fast_the_rest_runs_and_the_job_fails_in_the_end(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(20, tolerated=100)
    first, second = await claim_all(database)
    await settle_as(database, first, DEAD, *[Succeeded()] * 9)
    assert (await platform.job(job_id)).status == "RUNNING"
    await settle_as(database, second, *[Succeeded()] * 10)
    job = await platform.job(job_id)
    assert (job.status, job.succeeded, job.dlq) == ("FAILED", 19, 1)


async def test_a_tolerant_job_that_lost_few_fails_in_the_end_too(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(10, fail_fast=True, tolerated=5)
    (claim,) = await claim_all(database)
    await settle_as(database, claim, DEAD, *[Succeeded()] * 9)
    assert (await platform.job(job_id)).status == "FAILED"
    assert (await platform.statuses(job_id)) == {"DLQ": 1, "SUCCEEDED": 9}


async def test_deaths_while_paused_fail_the_job_when_it_is_resumed(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(20, fail_fast=True)
    first, _ = await claim_all(database)
    await control(platform, pause_job, job_id)
    await settle_as(database, first, DEAD)
    assert (await platform.job(job_id)).status == "PAUSED"
    assert (await control(platform, resume_job, job_id)).status == "FAILED"
    await sweep(database)
    assert (await platform.statuses(job_id)) == {"DLQ": 1, "CANCELLED": 19}
    await platform.check_consistency()


async def test_each_death_orders_an_event_in_its_own_commit(
    delivery: Delivery, platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(["a", "b", "c"])
    (claim,) = await claim_all(database)
    outcomes: list[Outcome] = [Refused("Bad", "ünfit \ufffe"), Succeeded(), Refused("Bad", "no")]
    await settle(
        database,
        "the worker",
        [Settlement(claim, i, o, 1) for i, o in zip(claim.inputs, outcomes, strict=True)],
        backoffs={KIND: Backoff()},
        jitter=lambda: 0.5,
        events=True,
    )
    job = await platform.job(job_id)
    entries = await platform.entries(job_id)
    assert [entry.type for entry in entries] == ["event", "event"]
    letters = await platform.rows("SELECT * FROM dead_letter ORDER BY ordinal")
    owner = (await platform.rows("SELECT name FROM owner"))[0].name
    assert entries[0].payload == {
        "v": 1, "type": "input.dead", "jobId": job.key, "job": str(job_id), "ordinal": 0,
        "kind": KIND, "owner": owner, "worker": "the worker", "attempts": 1, "maxAttempts": 3,
        "errorClass": "Bad", "error": "ünfit \ufffe", "fingerprint": letters[0].fingerprint,
        "diedAt": letters[0].died_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "correlationId": job.correlation_id,
    }  # fmt: skip
    if delivery.sqs is None or delivery.receiving is None:
        return
    assert delivery.settings.queue_url
    report = await delivery.event_relay(queue_url=delivery.settings.queue_url).relay_once()
    assert (report.sent, report.parked) == (2, 0)
    assert not await platform.entries(job_id)
    answer = await delivery.receiving.receive_message(
        QueueUrl=delivery.settings.queue_url or "", MaxNumberOfMessages=10
    )
    bodies = [json.loads(message["Body"]) for message in answer["Messages"]]
    assert sorted(body["ordinal"] for body in bodies) == [0, 2]
    assert all(message["Body"].isascii() for message in answer["Messages"])
