"""A row that a statement cannot deal with: whoever meets it says so, and goes on for the others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from infra.database import Database
from schema.errors import Unavailable
from tests.deliveries import Delivery
from tests.integration.faults.stations import log_lines, named, sqs_queue, sqs_station
from tests.platform import Platform, Recorder, eventually
from tests.stubs.sqs import SqsStub
from tests.stubs.tcp_proxy import TcpProxy


@asynccontextmanager
async def _a_bad_row(platform: Platform, when: str) -> AsyncIterator[None]:
    """Let Postgres fail at every update of an entry for which ``when`` holds."""
    await platform.rows(
        "CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RAISE EXCEPTION ''cannot subtract infinite timestamps'' USING ERRCODE = ''22008'';"
        " END'"
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
            async with _a_bad_row(platform, "NEW.state = 'CLAIMED'"):
                job_id = await platform.submit(2)
                delivery.listener.wake()
                await eventually(lambda: bool(named(lines, "receive.failed")))
            delivery.listener.wake()
            await platform.until(job_id, "COMPLETED")
    failed = named(lines, "receive.failed")
    assert all("infinite timestamps" in str(line["exc_info"]) for line in failed)
    assert len(failed) <= delivery.settings.receivers, "each loop says it once"
    assert not named(lines, "receive.away")


async def test_a_round_of_the_relay_that_fails_for_no_known_reason_does_not_end_it(
    station: Delivery, platform: Platform
) -> None:
    with log_lines() as lines:
        async with station.dispatching(), station.consuming(Recorder()):
            async with _a_bad_row(platform, "NEW.relay_attempts > OLD.relay_attempts"):
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
