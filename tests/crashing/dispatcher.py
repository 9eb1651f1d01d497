"""A dispatcher, relay and reaper, that dies at the step that ``CRASH_AT`` names."""

import asyncio
import os
from collections.abc import Sequence

from dispatcher.maintenance import run_services
from dispatcher.reaper import Reaper
from dispatcher.relay import Relay
from infra.process import run
from infra.queue.sending import Outgoing, SendReport, SqsSender
from infra.settings import Settings
from infra.wakeup import Listener
from schema.lifecycle import EntryType
from tests.acceptance.ledger import LEDGER
from tests.crashing.consumer import crashing_database
from tests.crashing.probe import Probe
from tests.deliveries import connect_delivery


class CrashingSender(SqsSender):
    """A sender around whose sending a process dies."""

    probe: Probe

    async def send(self, batch: Sequence[Outgoing]) -> SendReport:
        self.probe.reach("send:before")
        report = await super().send(batch)
        self.probe.reach("send:after")
        return report


async def serve(settings: Settings, worker: str, stop: asyncio.Event) -> None:
    probe = Probe(os.environ["CRASH_AT"])
    listener = Listener(settings, name="crashing")
    async with (
        crashing_database(settings, probe) as database,
        connect_delivery(settings, database, listener) as delivery,
        asyncio.TaskGroup() as group,
    ):
        reaper = Reaper(
            database,
            lease_seconds=settings.lease_seconds,
            backoffs={LEDGER.name: LEDGER.backoff},
            most=settings.maintenance_batch,
            wake=listener.wake,
            tell=lambda: None,
        )
        services = run_services(
            [reaper],
            interval_seconds=settings.maintenance_interval_seconds,
            stop=stop,
            turned=lambda _: None,
        )
        group.create_task(services, name="maintenance")
        if delivery.sqs is not None:
            assert settings.queue_url
            sender = CrashingSender(
                delivery.sqs, queue_url=settings.queue_url, limit_bytes=settings.max_message_bytes
            )
            sender.probe = probe
            relay = Relay(
                database,
                EntryType.INPUTS,
                sender,
                settings,
                worker=worker,
                woken=listener.wakes(),
            )
            group.create_task(relay.run(stop), name="relay")


def main() -> int:
    return run("dispatcher", serve)
