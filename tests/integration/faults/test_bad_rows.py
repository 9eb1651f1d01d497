"""A row that a statement cannot deal with: whoever meets it says so, and goes on for the others."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from infra.database import Database
from infra.queue.outbox import OutboxQueue
from infra.queue.protocol import Claim
from infra.wakeup import Listener
from schema.errors import Unavailable
from schema.outcome import Outcome, Succeeded
from schema.statements.control import pause_job
from tests.deliveries import Delivery
from tests.integration.faults.stations import log_lines, named, sqs_queue, sqs_station
from tests.platform import KIND, Gated, Platform, Recorder, eventually, settings_for
from tests.steps import control
from tests.stubs.sqs import SqsStub
from tests.stubs.tcp_proxy import TcpProxy


@asynccontextmanager
async def a_bad_row(platform: Platform, when: str, *, code: str = "22008") -> AsyncIterator[None]:
    """Let Postgres fail at every update of an entry for which ``when`` holds."""
    await platform.rows(
        "CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RAISE EXCEPTION ''cannot subtract infinite timestamps''"
        f" USING ERRCODE = ''{code}''; END'"
    )
    await platform.rows(
        f"CREATE TRIGGER fails BEFORE UPDATE ON outbox FOR EACH ROW WHEN ({when})"
        " EXECUTE FUNCTION fails()"
    )
    yield
    await platform.rows("DROP TRIGGER fails ON outbox")


async def test_a_claim_that_fails_for_no_known_reason_ends_no_consumer(
    delivery: Delivery, platform: Platform
) -> None:
    with log_lines() as lines:
        async with delivery.dispatching(), delivery.consuming(Recorder()):
            async with a_bad_row(platform, "NEW.state = 'CLAIMED'", code="38000"):
                job_id = await platform.submit(2)
                delivery.listener.wake()
                await eventually(lambda: bool(named(lines, "receive.failed")))
            delivery.listener.wake()
            await platform.until(job_id, "COMPLETED")
    failed = named(lines, "receive.failed")
    assert all("infinite timestamps" in str(line["exc_info"]) for line in failed)
    assert len(failed) <= delivery.settings.receivers, "each loop says it once"
    assert not named(lines, "receive.away")


async def test_an_outcome_that_cannot_be_recorded_once_is_recorded_all_the_same(
    delivery: Delivery, platform: Platform
) -> None:
    """A lone success became a dead letter for an error that had passed, and ran again."""
    await platform.rows("CREATE SEQUENCE once")
    await platform.rows(
        "CREATE FUNCTION fails_once() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN IF nextval(''once'') = 1 THEN"
        " RAISE EXCEPTION ''cache lookup failed'' USING ERRCODE = ''XX000''; END IF;"
        " RETURN NEW; END'"
    )
    await platform.rows(
        "CREATE TRIGGER fails_once BEFORE UPDATE ON input"
        " FOR EACH ROW EXECUTE FUNCTION fails_once()"
    )
    recorder = Recorder()
    job_id = await platform.submit(1)
    async with delivery.dispatching(), delivery.consuming(recorder):
        delivery.listener.wake()
        await platform.until(job_id, "COMPLETED")
    assert len(recorder.ran) == 1


async def test_an_entry_that_cannot_be_claimed_holds_up_no_other(
    delivery: Delivery, platform: Platform
) -> None:
    """Its flow was first in turn for ever, and nobody's entry was claimed any more."""
    other = Platform(platform.database)
    await other.prepare()
    bad, same_owner = await platform.submit(3, chunk_size=1), await platform.submit(2)
    other_owner, recorder = await other.submit(2), Recorder()
    with log_lines() as lines:
        async with a_bad_row(platform, f"NEW.state = 'CLAIMED' AND OLD.job_id = '{bad}'"):
            async with delivery.dispatching(), delivery.consuming(recorder):
                for job_id in (same_owner, other_owner, await platform.submit(2)):
                    await platform.until(job_id, "COMPLETED")
                await eventually(lambda: bool(named(lines, "entry.unclaimable")))
        assert not named(lines, "receive.failed")
    told = named(lines, "entry.unclaimable")
    assert {line["job_id"] for line in told} == {str(bad)}
    async with delivery.dispatching(), delivery.consuming(recorder, worker="next"):
        delivery.listener.wake()
        assert (await platform.until(bad, "COMPLETED", timeout_seconds=30)).succeeded == 3
    assert not await platform.rows("SELECT FROM attempt")


async def test_a_round_of_the_relay_that_fails_for_no_known_reason_does_not_end_it(
    station: Delivery, platform: Platform
) -> None:
    with log_lines() as lines:
        async with station.dispatching(), station.consuming(Recorder()):
            when = "NEW.relay_attempts > OLD.relay_attempts"
            async with a_bad_row(platform, when, code="38000"):
                job_id = await platform.submit(2)
                station.listener.wake()
                await eventually(lambda: bool(named(lines, "relay.failed")))
            await platform.until(job_id, "COMPLETED")
    assert len(named(lines, "relay.failed")) == 1
    assert len(named(lines, "relay.recovered")) == 1


async def test_no_message_is_taken_while_the_database_is_away(
    stub: SqsStub,
    platform: Platform,
    proxied: Database,
    proxied_url: str,
    postgres_proxy: TcpProxy,
) -> None:
    """It would be taken in vain, and SQS counts how often a message was received."""
    async with sqs_station(stub, proxied, proxied_url, receive_wait_seconds=1) as station:
        await platform.submit(1)
        await station.deliver()
        queue, stop = sqs_queue(station), asyncio.Event()
        await postgres_proxy.refuse()
        postgres_proxy.reset()
        for _ in range(4):
            with pytest.raises(Unavailable):
                await queue.claim(10, stop)
        assert stub.calls["ReceiveMessage"] == 1
        await postgres_proxy.listen()
        (claim,) = await queue.claim(10, stop)
        assert len(claim.inputs) == 1


async def test_leases_that_cannot_be_extended_for_no_known_reason_end_no_consumer(
    delivery: Delivery, platform: Platform
) -> None:
    recorder = Gated()
    with log_lines() as lines:
        async with delivery.dispatching(), delivery.consuming(recorder, lease_seconds=2):
            job_id = await platform.submit(2)
            delivery.listener.wake()
            await recorder.started.wait()
            when = "OLD.state = 'CLAIMED' AND NEW.state = 'CLAIMED'"
            async with a_bad_row(platform, when, code="38000"):
                await eventually(lambda: bool(named(lines, "lease.not_extended")))
                delivery.listener.tell_controlled()
                delivery.listener.tell_controlled()
            recorder.gate.set()
            await platform.until(job_id, "COMPLETED")
    (told,) = named(lines, "lease.not_extended")
    assert "infinite timestamps" in str(told["exc_info"])


async def _extended(delivery: Delivery, platform: Platform) -> None:
    """Have the consumer look at its leases, and return when it has extended the only one."""

    async def lease_end() -> object:
        return (await platform.rows("SELECT locked_until FROM outbox"))[0].locked_until

    async def is_later() -> bool:
        return await lease_end() != before

    before = await lease_end()
    delivery.listener.tell_controlled()
    await eventually(is_later)


async def test_an_entry_that_cannot_be_given_back_for_no_known_reason_ends_no_other_work(
    delivery: Delivery, platform: Platform
) -> None:
    recorder = Gated()
    with log_lines() as lines:
        async with delivery.dispatching(), delivery.consuming(recorder, concurrency=2):
            paused = await platform.submit(4)
            delivery.listener.wake()
            await recorder.started.wait()
            async with a_bad_row(platform, "OLD.state = 'CLAIMED' AND NEW.state <> 'CLAIMED'"):
                await control(platform, pause_job, paused)
                for _ in range(2):  # the second begins when the first has had its effect
                    await _extended(delivery, platform)
                recorder.gate.set()
                await eventually(lambda: bool(named(lines, "entry.not_released")))
            other = await platform.submit(2)
            delivery.listener.wake()
            await platform.until(other, "COMPLETED")
    (told,) = named(lines, "entry.not_released")
    assert told["log_level"] == "error"


async def test_messages_that_cannot_be_judged_for_no_known_reason_lose_no_claim_made_beside_them(
    station: Delivery, platform: Platform
) -> None:
    sound, paused = await platform.submit(1), await platform.submit(1)
    await station.deliver()
    await control(platform, pause_job, paused)
    async with a_bad_row(platform, "OLD.state = 'SENT' AND NEW.state = 'PENDING'"):
        with log_lines() as lines:
            queue = sqs_queue(station)
            claims = await queue.claim(10, asyncio.Event())
            assert not await queue.claim_rest(asyncio.Event())
    assert [claim.job_id for claim in claims] == [sound]
    (told,) = named(lines, "message.not_judged")
    assert told["log_level"] == "error"


class _Forgetful(OutboxQueue):
    """Knows nothing of its deliveries, and says so in a way that nobody foresaw."""

    async def extend(self, claims: Sequence[Claim], lease_seconds: float) -> None:
        raise KeyError(lease_seconds, *(claim.entry_id for claim in claims))

    async def acknowledge(self, claims: Sequence[Claim]) -> None:
        raise KeyError(*(claim.entry_id for claim in claims))


async def test_deliveries_that_cannot_be_kept_or_forgotten_are_told_of_and_end_no_consumer(
    database: Database, database_url: str, platform: Platform
) -> None:
    settings = settings_for(database_url, lease_seconds=1)
    delivery = Delivery("outbox", settings, database, Listener(settings, name="test"))

    def queue(worker: str) -> OutboxQueue:
        return _Forgetful(
            database,
            delivery.listener,
            worker=worker,
            kinds=[KIND],
            lease_seconds=settings.lease_seconds,
            poll_floor_seconds=settings.poll_floor_seconds,
        )

    with log_lines() as lines:

        async def say(*_: object) -> Outcome:
            await eventually(lambda: bool(named(lines, "lease.message_not_hidden")))
            return Succeeded()

        async with delivery.consuming(Recorder(say), queue=queue):
            for _ in range(2):
                job_id = await platform.submit(1)
                delivery.listener.wake()
                await platform.until(job_id, "COMPLETED")
                await eventually(lambda: bool(named(lines, "message.not_deleted")))
    assert len(named(lines, "message.not_deleted")) == 1, "told once"


async def test_a_claim_whose_work_fails_for_no_known_reason_costs_its_lease_and_no_other(
    delivery: Delivery, platform: Platform
) -> None:
    """A runner raises nothing; one that does is a defect, and would be one at every redelivery."""
    poison = await platform.submit(1, max_attempts=1)

    def say(claim: Claim, _: object) -> Outcome:
        if claim.job_id == poison:
            raise LookupError("nobody foresaw this")
        return Succeeded()

    with log_lines() as lines:
        async with delivery.dispatching(), delivery.consuming(Recorder(say), lease_seconds=1):
            delivery.listener.wake()
            await platform.until(poison, "FAILED")
            sound = await platform.submit(3)
            delivery.listener.wake()
            await platform.until(sound, "COMPLETED")
    (told,) = named(lines, "entry.failed")
    job = await platform.job(poison)
    assert (told["job"], told["correlation_id"]) == (job.key, job.correlation_id)
    (letter,) = await platform.rows("SELECT error_class FROM dead_letter")
    assert letter.error_class == "WorkerLost"
