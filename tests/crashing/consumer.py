"""A consumer that dies at the step that ``CRASH_AT`` names."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from consumer.assembly import assemble
from consumer.executor import Runner
from consumer.processors.loading import load_runners
from consumer.processors.protocol import Resources
from infra.http import Health
from infra.process import run
from infra.queue.protocol import NOTHING, Claim, ClaimedInput, Queue, Unwanted
from infra.settings import Settings
from infra.wakeup import Listener
from schema.outcome import Outcome
from tests.acceptance.ledger import LEDGER
from tests.crashing.probe import CrashingDatabase, Probe
from tests.deliveries import connect_delivery


class CrashingQueue:
    """A queue around which a process dies."""

    def __init__(self, queue: Queue, probe: Probe) -> None:
        self._queue = queue
        self._probe = probe
        self.claiming = queue.claiming
        self.claim_rest = queue.claim_rest
        self.extend = queue.extend
        self.ping = queue.ping
        self.abandon = queue.abandon

    async def claim(
        self, most: int, stop: asyncio.Event, unwanted: Unwanted = NOTHING
    ) -> Sequence[Claim]:
        claims = await self._queue.claim(most, stop, unwanted)
        if claims:
            self._probe.reach("claim:handed over")
        return claims

    async def acknowledge(self, claims: Sequence[Claim]) -> None:
        self._probe.reach("acknowledge:before")
        await self._queue.acknowledge(claims)
        self._probe.reach("acknowledge:after")


class CrashingRunner:
    """A runner around whose work a process dies."""

    def __init__(self, runner: Runner, probe: Probe) -> None:
        self._runner = runner
        self._probe = probe
        self.together = runner.together

    async def run(self, claim: Claim, inputs: Sequence[ClaimedInput]) -> Sequence[Outcome]:
        self._probe.reach("process:before")
        outcomes = await self._runner.run(claim, inputs)
        self._probe.reach("process:after")
        return outcomes


async def serve(settings: Settings, worker: str, stop: asyncio.Event) -> None:
    probe = Probe(os.environ["CRASH_AT"])
    kinds = {LEDGER.name: LEDGER}
    async with (
        crashing_database(settings, probe) as database,
        connect_delivery(settings, database, Listener(settings, name="crashing")) as delivery,
        load_runners(kinds, Resources(settings, database, None), stop) as runners,
    ):
        queue = CrashingQueue(delivery.queue(worker, kinds=(LEDGER.name,)), probe)
        crashing = {name: CrashingRunner(runner, probe) for name, runner in runners.items()}
        consumer = assemble(
            settings, worker, database, queue, crashing, kinds, stop, health=Health(60)
        )
        await consumer.run(stop)


@asynccontextmanager
async def crashing_database(settings: Settings, probe: Probe) -> AsyncIterator[CrashingDatabase]:
    async with CrashingDatabase.from_settings(settings, name="crashing") as database:
        database.probe = probe
        yield database


def main() -> int:
    return run("consumer", serve)
