"""The queue's own DLQ: what is stored of its messages, and what becomes of their entries."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from types_aiobotocore_sqs import SQSClient

from dispatcher.drain import Drain
from infra.clients import Clients
from infra.database import Database
from infra.queue.dead import DeadLetterQueue
from localstack.init.resources import Access
from schema.outcome import Succeeded
from schema.statements.control import pause_job
from schema.statements.parked import (
    dismiss_parked_message,
    list_parked_entries,
    list_parked_messages,
    reprocess_parked_entry,
    reprocess_parked_message,
)
from schema.statements.relay import lock_ready, mark_sent, park_entries
from tests.deliveries import aws_environment
from tests.platform import KIND, Platform, settings_for
from tests.steps import claim_all, control, settle_as, sweep
from tests.stubs.sqs import SqsStub
from tests.stubs.sqs.queue import Message


@asynccontextmanager
async def dead_letters(database_url: str) -> AsyncIterator[tuple[SqsStub, SQSClient, str]]:
    """A queue of SQS for messages that died: the stub, a client and the address."""
    async with SqsStub() as stub:
        with aws_environment(Access(stub.endpoint_url)):
            async with Clients(settings_for(database_url)).sqs() as sqs:
                yield stub, sqs, (await sqs.create_queue(QueueName="dlq"))["QueueUrl"]


async def send_all(database: Database) -> None:
    rows = await database.fetch(lock_ready("t", 30, kind=KIND, most=100))
    await database.fetch(mark_sent("t", [row.id for row in rows]))


async def test_every_dead_message_is_kept_and_resolved_by_the_truth(
    platform: Platform, database: Database, database_url: str
) -> None:
    sent = await platform.submit(1)
    claimed = await platform.submit(1, priority=9)
    settled = await platform.submit(1, priority=9)
    held = await platform.submit(1)
    ids = {job: (await platform.entries(job))[0].id for job in (sent, claimed, settled, held)}
    claims = {claim.job_id: claim for claim in await claim_all(database, most=2)}
    await settle_as(database, claims[settled], Succeeded())
    await send_all(database)
    await control(platform, pause_job, held)
    await sweep(database)
    bodies = [f'{{"v":1,"entry":{ids[job]},"job":"{job}","kind":"probe"}}' for job in ids]
    bodies += [
        "hello \u00e9",
        f'{{"v":1,"entry":{ids[sent]},"job":"{held}","kind":"probe"}}',
    ]
    woken: list[bool] = []
    async with dead_letters(database_url) as (_, sqs, url):
        for body in bodies:
            await sqs.send_message(QueueUrl=url, MessageBody=body)
        queue = DeadLetterQueue(sqs, queue_url=url)
        drain = Drain(database, queue, wake=lambda: woken.append(True))
        total = 0
        while found := await drain.once():
            total += found
        assert total == 6
        assert await drain.once() == 0
    rows = await database.fetch(list_parked_messages(after=0, only_open=False, most=100))
    by_job = {
        row.job_id: row.resolution for row in rows if row.job_id and row.entry_id == ids[row.job_id]
    }
    assert by_job == {
        sent: "requeued", claimed: "in hand", settled: "settled", held: "in hand",
    }  # fmt: skip
    (entry,) = await platform.entries(sent)
    assert (entry.state, entry.sent_at, woken) == ("PENDING", None, [True])
    still_open = await database.fetch(list_parked_messages(after=0, only_open=True, most=100))
    assert len(still_open) == 2
    assert all(row.receive_count >= 1 for row in rows)
    for row in still_open:
        assert await database.fetch(dismiss_parked_message(row.id))
        assert not await database.fetch(dismiss_parked_message(row.id))


@pytest.mark.parametrize("poison", ['{"v":"\\ud800"}', '{"v":"\\u0000"}', "\0"])
async def test_a_dead_message_that_no_database_takes_as_it_is_holds_up_no_other(
    platform: Platform, database: Database, database_url: str, poison: str
) -> None:
    odd: dict[str, Any] = {"a\0": {"DataType": "String", "StringValue": "\ud800"}}
    async with dead_letters(database_url) as (stub, sqs, url):
        stub.queue(url).put(Message("odd", poison, "0" * 32, odd, "0" * 32, None), 0)
        for number in range(4):
            await sqs.send_message(QueueUrl=url, MessageBody=f"hello {number}")
        drain = Drain(database, DeadLetterQueue(sqs, queue_url=url), wake=lambda: None)
        assert await drain.once() == 5
        assert sum(stub.queue(url).counts()) == 0
    rows = await platform.rows("SELECT message_id, body, reason, attributes FROM parked_message")
    assert len(rows) == 5
    (row,) = [row for row in rows if row.message_id == "odd"]
    assert row.body == poison.replace("\0", "\N{REPLACEMENT CHARACTER}")
    assert row.attributes == {"a\N{REPLACEMENT CHARACTER}": "\N{REPLACEMENT CHARACTER}"}
    assert row.reason.isascii()


@pytest.mark.parametrize(("paused", "state"), [(False, "PENDING"), (True, "HELD")])
async def test_a_parked_entry_is_made_due_again_where_its_job_wants_it(
    platform: Platform, database: Database, paused: bool, state: str
) -> None:
    job_id = await platform.submit(1)
    await database.fetch(lock_ready("t", 30, kind=KIND, most=100))
    (entry,) = await platform.entries(job_id)
    await database.fetch(park_entries("t", [entry.id], ["too large"]))
    if paused:
        await control(platform, pause_job, job_id)
        await sweep(database)
    (listed,) = await database.fetch(list_parked_entries(after=0, most=10))
    assert (listed.id, listed.parked_reason) == (entry.id, "too large")
    (row,) = await database.fetch(reprocess_parked_entry(entry.id))
    assert row.state == state
    assert not await database.fetch(reprocess_parked_entry(entry.id))
    await platform.check_consistency()


async def test_an_open_message_can_be_reprocessed_by_an_operator(
    platform: Platform, database: Database
) -> None:
    job_id = await platform.submit(1)
    (entry,) = await platform.entries(job_id)
    await send_all(database)
    (message,) = await platform.rows(
        "INSERT INTO parked_message (queue, message_id, reason, body, attributes, entry_id, job_id)"
        " VALUES ('q', 'm', 'r', 'b', '{}', :entry, :job) RETURNING id",
        entry=entry.id,
        job=job_id,
    )
    (row,) = await database.fetch(reprocess_parked_message(message.id))
    assert row.resolution == "requeued"
    assert (await platform.entries(job_id))[0].state == "PENDING"
    assert not await database.fetch(reprocess_parked_message(message.id))
