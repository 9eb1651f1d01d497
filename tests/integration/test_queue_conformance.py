"""What every mode of delivery promises, held to by one suite."""

import asyncio
from collections import Counter

import asyncpg
from sqlalchemy import text

from infra.queue.protocol import Claim, ClaimedInput, Unwanted
from schema.outcome import Failed, Outcome, Succeeded
from tests.deliveries import Delivery
from tests.integration.test_held_rows import leasing
from tests.platform import KIND, Gated, Platform, Recorder, eventually, seeded
from tests.steps import open_unit


async def test_every_input_runs_and_settles_exactly_once_with_two_consumers_and_dispatchers(
    delivery: Delivery, platform: Platform
) -> None:
    first, second = Recorder(), Recorder(together=4)
    async with (
        delivery.dispatching(worker="d1"),
        delivery.dispatching(worker="d2"),
        delivery.consuming(first, worker="c1"),
        delivery.consuming(second, worker="c2"),
    ):
        jobs = [await platform.submit(n, chunk_size=7) for n in (1, 50, 173)]
        delivery.listener.wake()
        for job_id in jobs:
            assert (await platform.until(job_id, "COMPLETED")).succeeded
    ran = Counter(first.ran + second.ran)
    assert len(ran) == 224
    assert set(ran.values()) == {1}
    assert not await platform.rows("SELECT id FROM outbox")
    await platform.check_consistency()


async def test_a_claim_that_was_delivered_twice_runs_once(
    delivery: Delivery, platform: Platform
) -> None:
    job_id = await platform.submit(3)
    queue, other = delivery.queue("w1"), delivery.queue("w2")
    stop = asyncio.Event()
    await delivery.deliver()
    (claim,) = await queue.claim(10, stop)
    # The relay crashed after sending, before writing it down: it sends again.
    if delivery.sqs is not None:
        assert delivery.settings.queue_url
        await delivery.sqs.send_message(
            QueueUrl=delivery.settings.queue_url,
            MessageBody=f'{{"v":1,"entry":{claim.entry_id},"job":"{job_id}","kind":"probe"}}',
        )
    assert await other.claim(10, stop) == []
    assert len(claim.inputs) == 3
    (entry,) = await platform.entries(job_id)
    assert (entry.locked_by, entry.epoch) == ("w1", 1)


async def test_a_message_that_overtakes_the_relays_own_note_is_claimed_and_not_dropped(
    delivery: Delivery, platform: Platform, database_url: str
) -> None:
    """The relay has sent an entry and is writing that down while its message is received."""
    job_id = await platform.submit(2)
    await delivery.deliver()
    connection = await asyncpg.connect(database_url)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("UPDATE outbox SET relay_attempts = 0")
    # A claim waits for a row as long as a fraction of a lease, but a second at most.
    async with leasing(delivery, 30).consuming(Recorder()):
        await eventually(lambda: waits_for_a_lock_or_polls(platform))
        await transaction.commit()
        delivery.listener.wake()
        assert (await platform.until(job_id, "COMPLETED")).succeeded == 2
    await connection.close()


async def waits_for_a_lock_or_polls(platform: Platform) -> bool:
    """The consumer met the locked row: it waits for it, or passed over it and polls again."""
    rows = await platform.rows(
        "SELECT wait_event_type, query FROM pg_stat_activity"
        " WHERE datname = current_database() AND query LIKE '%claimed AS%'"
        " AND pid <> pg_backend_pid()"
    )
    return bool(rows)


async def test_failures_are_retried_until_they_succeed_or_die(
    delivery: Delivery, platform: Platform
) -> None:
    def say(claim: Claim, input_: ClaimedInput) -> Outcome:
        wanted = int(input_.body)
        return Succeeded() if input_.attempts >= wanted else Failed("Boom", f"attempt {wanted}")

    recorder = Recorder(say)
    async with delivery.dispatching(), delivery.consuming(recorder):
        job_id = await platform.submit([0, 1, 2, 3, 0], max_attempts=3)
        delivery.listener.wake()
        job = await platform.until(job_id, "FAILED")
    assert (job.succeeded, job.dlq) == (4, 1)
    assert Counter(ordinal for _, ordinal in recorder.ran) == {0: 1, 1: 2, 2: 3, 3: 3, 4: 1}
    await platform.check_consistency()


async def test_an_entry_that_is_due_later_is_left_alone_until_then(
    delivery: Delivery, platform: Platform
) -> None:
    now = (await platform.rows("SELECT now() + interval '1 second' AS at"))[0].at
    recorder = Recorder()
    async with delivery.dispatching(), delivery.consuming(recorder):
        job_id = await platform.submit(2, scheduled_for=now)
        job = await platform.until(job_id, "COMPLETED")
    assert job.started_at >= now
    await platform.check_consistency()


async def test_work_that_ended_during_the_drain_is_committed_and_the_rest_given_back(
    delivery: Delivery, platform: Platform
) -> None:
    recorder = Gated()
    job_id = await platform.submit(10)
    async with delivery.dispatching():
        async with delivery.consuming(recorder, concurrency=3) as stop:
            delivery.listener.wake()
            await recorder.started.wait()
            stop.set()
            recorder.gate.set()
        assert (await platform.statuses(job_id)) == {"SUCCEEDED": 3, "PENDING": 7}
        entries = await platform.rows("SELECT locked_by FROM outbox")
        # The dispatcher may be sending it again this very moment.
        assert "worker" not in {entry.locked_by for entry in entries}
        attempts = await platform.rows(
            "SELECT sum(attempts) AS n FROM input WHERE status <> 'SUCCEEDED'"
        )
        assert attempts[0].n == 0
        async with delivery.consuming(Recorder(), worker="next"):
            await platform.until(job_id, "COMPLETED")
    await platform.check_consistency()


async def test_work_still_running_when_the_drain_is_over_is_interrupted_and_given_back(
    delivery: Delivery, platform: Platform
) -> None:
    async def endless(claim: Claim, input_: ClaimedInput) -> Outcome:
        await asyncio.Event().wait()
        return Succeeded()

    recorder = Recorder(endless)
    job_id = await platform.submit(4)
    async with delivery.dispatching():
        async with delivery.consuming(recorder, concurrency=2, drain_seconds=0.05) as stop:
            delivery.listener.wake()
            await recorder.started.wait()
            stop.set()
        assert (await platform.statuses(job_id)) == {"PENDING": 4}
        async with delivery.consuming(Recorder(), worker="next"):
            job = await platform.until(job_id, "COMPLETED")
    assert job.succeeded == 4
    assert not await platform.rows("SELECT * FROM attempt")
    await platform.check_consistency()


async def test_a_vanished_worker_costs_one_attempt_and_its_inputs_return_one_by_one(
    delivery: Delivery, platform: Platform
) -> None:
    job_id = await platform.submit(4)
    await delivery.deliver()
    vanished = delivery.queue("vanished")
    (claim,) = await vanished.claim(10, asyncio.Event())
    await platform.rows("UPDATE outbox SET locked_until = now() - interval '1 second' RETURNING id")
    for service in delivery.services():
        await service.once()
    entries = await platform.entries(job_id)
    assert [(entry.first_ordinal, entry.unfinished) for entry in entries] == [
        (0, 1), (1, 1), (2, 1), (3, 1),
    ]  # fmt: skip
    attempts = await platform.rows("SELECT status, error_class, error_message FROM attempt")
    assert {(row.status, row.error_class) for row in attempts} == {("PENDING", "WorkerLost")}
    assert "vanished" in attempts[0].error_message
    await platform.check_consistency()
    async with delivery.dispatching(), delivery.consuming(Recorder()):
        await platform.until(job_id, "COMPLETED")
    assert claim.entry_id not in {entry.id for entry in entries}
    await platform.check_consistency()


async def test_an_input_that_kills_its_worker_each_time_dies_alone(
    delivery: Delivery, platform: Platform
) -> None:
    """The killer is simulated by lapsing whatever claim holds ordinal 2."""
    job_id = await platform.submit(5, max_attempts=2)
    recorder = Recorder()
    async with delivery.dispatching():

        async def killer(claim: Claim, input_: ClaimedInput) -> Outcome:
            if input_.ordinal != 2:
                return Succeeded()
            await platform.rows(
                "UPDATE outbox SET locked_until = now() - interval '1 second'"
                " WHERE id = :id RETURNING id",
                id=claim.entry_id,
            )
            await asyncio.Event().wait()
            return Succeeded()

        recorder = Recorder(killer)
        async with delivery.consuming(recorder, concurrency=1, lease_seconds=0.6):
            delivery.listener.wake()
            job = await platform.until(job_id, "FAILED")
    assert (job.succeeded, job.dlq) == (4, 1)
    letter = (await platform.rows("SELECT ordinal, attempts, error_class FROM dead_letter"))[0]
    assert tuple(letter) == (2, 2, "WorkerLost")
    await platform.check_consistency()


async def test_a_kind_that_nobody_here_knows_is_left_for_others(
    delivery: Delivery, platform: Platform
) -> None:
    unknown = await platform.submit(2, kind="elsewhere")
    known = await platform.submit(2)
    async with delivery.dispatching(), delivery.consuming(Recorder()):
        delivery.listener.wake()
        await platform.until(known, "COMPLETED")
    assert (await platform.job(unknown)).status == "SUBMITTED"
    (entry,) = await platform.entries(unknown)
    assert entry.epoch == 0


async def test_a_job_that_has_not_started_and_is_in_other_hands_holds_up_no_other(
    delivery: Delivery, platform: Platform
) -> None:
    """An operator looks at its row, and leaves the transaction open."""
    other = Platform(platform.database)
    await other.prepare()
    locked = await platform.submit(20)
    recorder = Recorder()
    async with delivery.dispatching(), delivery.consuming(recorder):
        async with open_unit(platform.database) as connection:
            await connection.execute(
                text("SELECT FROM job WHERE id = :id FOR UPDATE"), {"id": locked}
            )
            for _ in range(3):
                job_id = await other.submit(2)
                delivery.listener.wake()
                await other.until(job_id, "COMPLETED")
            assert (await platform.job(locked)).started_at is None
        await platform.until(locked, "COMPLETED")
    assert Counter(job_id for job_id, _ in recorder.ran)[locked] == 20
    assert not await platform.rows("SELECT 1 FROM attempt"), "nobody's attempt was charged"
    await platform.check_consistency()


async def test_consumers_that_claim_entries_of_a_new_job_at_once_start_it_once(
    delivery: Delivery, platform: Platform
) -> None:
    job_id = await platform.submit(40, chunk_size=1)
    await delivery.deliver()
    stop = asyncio.Event()
    entries: list[int] = []
    while len(entries) < 40:
        claims = await asyncio.gather(
            *(delivery.queue(f"w{number}").claim(10, stop) for number in range(4))
        )
        entries += [claim.entry_id for each in claims for claim in each]
        await delivery.deliver()
    assert len(set(entries)) == len(entries) == 40
    assert (await platform.job(job_id)).status == "RUNNING"


async def test_an_entry_of_a_paused_job_is_not_claimed(
    delivery: Delivery, platform: Platform
) -> None:
    job_id = await platform.submit(2)
    await delivery.deliver()
    await platform.rows("UPDATE job SET status = 'PAUSED' WHERE id = :id RETURNING id", id=job_id)
    assert not await delivery.queue("w").claim(10, asyncio.Event())


async def test_a_database_error_while_settling_is_retried_and_counted_once(
    delivery: Delivery, platform: Platform
) -> None:
    """Backends are terminated at random moments of the run."""
    rng = seeded(7)
    recorder = Recorder()
    async with delivery.dispatching(), delivery.consuming(recorder):
        job_id = await platform.submit(300, chunk_size=10)
        delivery.listener.wake()

        kills = iter(range(8))

        async def done() -> bool:
            if rng.random() < 0.2 and next(kills, None) is not None:
                await platform.rows(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            return str((await platform.job(job_id)).status) == "COMPLETED"

        async def survives() -> bool:
            try:
                return await done()
            except Exception as error:  # noqa: BLE001 - the test's own connection may be the victim
                assert "away" in str(error) or "terminat" in str(error)
                return False

        await eventually(survives)
    assert (await platform.job(job_id)).succeeded == 300
    await platform.check_consistency()


async def test_kinds_of_which_a_consumer_has_enough_are_left_to_others(
    delivery: Delivery, platform: Platform
) -> None:
    job_id = await platform.submit(3)
    await delivery.deliver()
    stop = asyncio.Event()
    assert not await delivery.queue("full").claim(10, stop, Unwanted({KIND}))
    other = delivery.queue("other")

    async def is_claimed() -> bool:
        return bool(await other.claim(10, stop))

    await eventually(is_claimed)
    (entry,) = await platform.entries(job_id)
    assert (entry.locked_by, entry.epoch) == ("other", 1)
