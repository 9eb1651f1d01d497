"""``python -m dispatcher``: build the relay and the maintenance services and run them."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from dispatcher.drain import Drain
from dispatcher.expirer import Expirer
from dispatcher.finalizer import Finalizer
from dispatcher.gauges import Gauges
from dispatcher.maintenance import MaintenanceService, run_services
from dispatcher.promoter import Promoter
from dispatcher.pruner import Pruner, Retention
from dispatcher.reaper import Reaper
from dispatcher.redriver import Redriver
from dispatcher.relay import Relay
from dispatcher.resender import Resender
from dispatcher.sweeper import Sweeper
from infra.backlog import Scaling
from infra.clients import Clients
from infra.database import Database
from infra.http import Health, serve_health
from infra.kinds import load_kinds
from infra.migrate import check_at_head
from infra.process import run
from infra.queue.dead import DeadLetterQueue
from infra.queue.sending import SqsSender
from infra.retry import wait_until_available
from infra.telemetry.opening import open_instruments
from infra.wakeup import Listener, Notifier
from schema.lifecycle import EntryType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from types_aiobotocore_sqs import SQSClient

    from infra.settings import Settings
    from infra.telemetry.instruments import Instruments
    from schema.kinds import Kind

_PRUNER_RESTS_SECONDS = 60.0


async def serve(settings: Settings, worker: str, stop: asyncio.Event) -> None:
    """Relay and repair until ``stop``; wait for neighbours that are away, not ready meanwhile."""
    kinds = load_kinds(settings.kinds, settings.kind_policies)
    health = Health(settings.liveness_timeout_seconds, stop=stop)
    async with AsyncExitStack() as stack:
        instruments = await stack.enter_async_context(
            open_instruments(
                settings,
                process="dispatcher",
                worker=worker,
                is_exposed=settings.is_exposed_beside_health,
            )
        )
        database = await stack.enter_async_context(
            Database.from_settings(
                settings, name=f"haulage dispatcher {worker}", metrics=instruments.metrics
            )
        )
        health.checks |= {"database": database.ping, "migrations": partial(check_at_head, database)}
        health.pages["/scaling"] = Scaling(database, concurrency=settings.concurrency).page
        health.expose(instruments.exposition)
        client = await _client(settings, stack)
        senders = _senders(settings, client)
        instruments.metrics.dispatches(kinds, queues=senders)
        for entry_type, sender in senders.items():
            health.checks[f"queue {entry_type}"] = sender.ping
        listener = Listener(settings, name=f"haulage dispatcher {worker}")
        notifier = Notifier(database, enabled=settings.notify)
        # One for each queue: what is wrong with one holds up no other.
        relays = {
            f"relay {entry_type}": Relay(
                database,
                entry_type,
                sender,
                settings,
                worker=worker,
                woken=listener.wakes(),
                turned=partial(health.turned, f"relay {entry_type}"),
                instruments=instruments,
            )
            for entry_type, sender in senders.items()
        }
        services = _services(settings, database, client, notifier, kinds, instruments)
        if instruments.metrics.is_on:
            gauges = Gauges(
                database,
                instruments.metrics,
                worker=worker,
                interval_seconds=settings.maintenance_interval_seconds,
                concurrency=settings.concurrency,
                relays_inputs=EntryType.INPUTS in senders,
            )
            services.append(await stack.enter_async_context(gauges))
        # What was controlled or is to be redriven need not wait for the next round.
        wakes = {name: listener.controls() for name in (Sweeper.name, Redriver.name)}
        drained = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(
                serve_health(
                    health, host=settings.health_host, port=settings.health_port, stop=drained
                ),
                name="health",
            )
            side = [
                group.create_task(listener.run(), name="listener"),
                group.create_task(notifier.run(), name="notifier"),
                group.create_task(instruments.metrics.watch_loop(), name="loop lag"),
            ]
            if await wait_until_available("database", lambda: check_at_head(database), stop):
                async with asyncio.TaskGroup() as work:
                    for name, relay in relays.items():
                        # Until its first good round, a loop is as old as its start.
                        health.turned(name)
                        work.create_task(relay.run(stop), name=name)
                    work.create_task(
                        run_services(
                            services,
                            interval_seconds=settings.maintenance_interval_seconds,
                            stop=stop,
                            turned=health.turned,
                            wakes=wakes,
                        ),
                        name="maintenance",
                    )
            drained.set()
            for task in side:
                task.cancel()


def _services(
    settings: Settings,
    database: Database,
    client: SQSClient | None,
    notifier: Notifier,
    kinds: Mapping[str, Kind],
    instruments: Instruments,
) -> list[MaintenanceService]:
    """Give every maintenance service: each does one duty, in any number of instances."""
    most, wake = settings.maintenance_batch, notifier.notify
    services: list[MaintenanceService] = [
        Reaper(
            database,
            lease_seconds=settings.lease_seconds,
            backoffs={name: kind.backoff for name, kind in kinds.items()},
            most=most,
            wake=wake,
            tell=notifier.notify_control,
            events=settings.events_queue_url is not None,
            instruments=instruments,
        ),
        Promoter(database, wake=wake),
        Resender(database, after_seconds=settings.resend_after_seconds, most=most, wake=wake),
        Finalizer(database, most=most),
        Expirer(database, most=most, tell=notifier.notify_control),
        Sweeper(database, most=most, wake=wake, tell=notifier.notify_control),
        Redriver(database, chunks={name: kind.chunk for name, kind in kinds.items()}, wake=wake),
        Pruner(
            database,
            keep=Retention.from_settings(settings),
            most=most,
            events_are_sent=settings.events_queue_url is not None,
            rest_seconds=_PRUNER_RESTS_SECONDS,
        ),
    ]
    if client is not None and settings.dead_letter_queue_url:
        queue = DeadLetterQueue(client, queue_url=settings.dead_letter_queue_url)
        services.append(Drain(database, queue, wake=wake))
    return services


async def _client(settings: Settings, stack: AsyncExitStack) -> SQSClient | None:
    """Give a client where there is a queue to talk to."""
    urls = [settings.work_queue_url, settings.events_queue_url, settings.dead_letter_queue_url]
    return await stack.enter_async_context(Clients(settings).sqs()) if any(urls) else None


def _senders(settings: Settings, client: SQSClient | None) -> dict[EntryType, SqsSender]:
    """Give a sender for each type of entry that this mode sends; without SQS there is none."""
    urls = {
        EntryType.EVENT: settings.events_queue_url,
        EntryType.INPUTS: settings.work_queue_url,
    }
    return {
        entry_type: SqsSender(
            client,
            queue_url=url,
            limit_bytes=settings.max_message_bytes,
            # An entry waits for the cap at most, then for its turn among the others.
            tried_within_seconds=2 * settings.relay_backoff_cap_seconds,
        )
        for entry_type, url in urls.items()
        if client is not None and url
    }


if __name__ == "__main__":
    sys.exit(run("dispatcher", serve))
