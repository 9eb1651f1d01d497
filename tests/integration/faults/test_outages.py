"""SQS or Postgres goes away in the middle of a run: nothing is lost, and nobody spins meanwhile.

``OUTAGE_SECONDS=60`` makes each outage a minute long, for a run by hand (with ``-s`` it prints
what it counted); the bounds are on counts, and grow with the length alone.
"""

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from infra.database import Database
from infra.queue.protocol import Claim, ClaimedInput
from schema.outcome import Outcome, Succeeded
from tests.integration.faults.stations import log_lines, sqs_station, waiting
from tests.platform import Platform, Recorder, eventually, stretch
from tests.stubs.sqs import FailEntries, Refuse, SqsStub
from tests.stubs.sqs.faults import THROTTLED, Fault
from tests.stubs.tcp_proxy import TcpProxy

SECONDS = float(os.environ.get("OUTAGE_SECONDS", "2"))
_WORK = {"entry.done", "relay.sent"}
_ACTIONS = (
    "SendMessageBatch",
    "ReceiveMessage",
    "DeleteMessageBatch",
    "ChangeMessageVisibilityBatch",
)


@dataclass
class World:
    """Everything that can be broken."""

    stub: SqsStub
    sqs: TcpProxy
    postgres: TcpProxy

    def refuse(self, fault: Fault) -> None:
        for action in _ACTIONS:
            self.stub.faults.always(action, fault)

    def proxy(self, neighbour: str) -> TcpProxy:
        return self.sqs if neighbour == "sqs" else self.postgres

    @asynccontextmanager
    async def outage(self, kind: str) -> AsyncIterator[None]:
        """Break what ``kind`` names for the length of the block."""
        neighbour, _, how = kind.partition(" ")
        proxy = self.proxy(neighbour)
        match how:
            case "answers 500":
                self.refuse(Refuse("InternalError", 500))
            case "throttles":
                self.refuse(THROTTLED)
            case "fails entries":
                for action in ("SendMessageBatch", "DeleteMessageBatch"):
                    self.stub.faults.always(action, FailEntries((0, 2)))
            case "is gone":
                await proxy.outage()
            case "swallows everything":
                proxy.hold()
            case "is half open":
                proxy.leave_half_open()
            case "is slow":
                proxy.delay_seconds = 0.05
            case "resets":
                proxy.reset_after(2_000)
        try:
            yield
        finally:
            self.stub.faults.clear()
            proxy.delay_seconds = 0.0
            proxy.release()
            await proxy.listen()


class Gated(Recorder):
    """Work of which a part waits for the outage to begin, so that it ends inside it.

    Which part is told by who begins, not by ordinals: the relay sends side by side, and inputs
    that wait may fill every slot before one that need not wait has come.
    """

    def __init__(self) -> None:
        super().__init__(self._work)
        self.gate = asyncio.Event()
        self._begun = 0

    async def _work(self, _claim: Claim, input_: ClaimedInput) -> Outcome:
        self._begun += 1
        if self._begun > 20:
            await self.gate.wait()
        return Succeeded({"ordinal": input_.ordinal})


async def _some_are_done(platform: Platform) -> bool:
    return bool(await platform.rows("SELECT 1 FROM job WHERE succeeded >= 20"))


@pytest.mark.parametrize(
    "kind",
    [
        "sqs resets",
        "sqs swallows everything",
        "sqs is half open",
        "sqs is slow",
        "sqs answers 500",
        "sqs throttles",
        "sqs fails entries",
        "sqs is gone",
        "postgres resets",
        "postgres swallows everything",
        "postgres is half open",
        "postgres is slow",
        "postgres is gone",
    ],
)
async def test_an_outage_in_the_middle_of_a_run_loses_nothing_and_nobody_spins(
    kind: str, stub: SqsStub, sqs_proxy: TcpProxy, postgres_proxy: TcpProxy,
    proxied: Database, proxied_url: str, platform: Platform,
) -> None:  # fmt: skip
    world, work = World(stub, sqs_proxy, postgres_proxy), Gated()
    async with sqs_station(
        stub, proxied, proxied_url, port=sqs_proxy.port, aws_read_timeout_seconds=2,
        aws_attempts=2, statement_timeout_seconds=1, database_connect_timeout_seconds=2,
        lease_seconds=4, resend_after_seconds=6, receivers=2, relay_backoff_cap_seconds=5,
    ) as station:  # fmt: skip
        with log_lines() as lines:
            async with station.dispatching(), station.consuming(work, concurrency=40):
                job_id = await platform.submit(90, chunk_size=3, max_attempts=100)
                station.listener.wake()
                await eventually(lambda: _some_are_done(platform))
                calls, lines_before = stub.calls.total(), len(lines)
                links = sqs_proxy.accepted + postgres_proxy.accepted
                cpu_seconds = time.process_time()
                async with world.outage(kind):
                    work.gate.set()
                    late = await platform.submit(9, chunk_size=3, max_attempts=100)
                    station.listener.wake()
                    await stretch(SECONDS)
                    calls = stub.calls.total() - calls
                    links = sqs_proxy.accepted + postgres_proxy.accepted - links
                    cpu_seconds = time.process_time() - cpu_seconds
                    told = Counter(
                        line["event"] for line in lines[lines_before:] if line["event"] not in _WORK
                    )
                for each in (job_id, late):
                    await platform.until(each, "COMPLETED", timeout_seconds=120)
                await eventually(lambda: waiting(stub, station) == 0, timeout_seconds=60)
    sys.stdout.write(
        f"\n{kind}: {SECONDS:g} s, {calls} calls of SQS, {links} connections, "
        f"{told.total()} log lines {dict(told)}, {cpu_seconds:.1f} s of CPU for everything\n"
    )
    for each, inputs in ((job_id, 90), (late, 9)):
        job = await platform.job(each)
        assert (job.succeeded, job.dlq) == (inputs, 0)
    assert not await platform.rows("SELECT id FROM outbox")
    assert not await platform.rows("SELECT id FROM parked_message")
    await platform.check_consistency()
    assert told.total() <= 40 + SECONDS / 2
    assert calls <= 150 + 10 * SECONDS
    assert links <= 60 + 10 * SECONDS
