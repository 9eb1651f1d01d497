"""``python -m dispatcher``: build the relay and the maintenance services and run them."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from dispatcher.finalizer import Finalizer
from dispatcher.maintenance import run_services
from dispatcher.reaper import Reaper
from dispatcher.relay import Relay
from dispatcher.resender import Resender
from infra.clients import Clients
from infra.database import Database
from infra.http import Health, serve_health
from infra.kinds import load_kinds
from infra.migrate import check_at_head
from infra.process import run
from infra.queue.sending import SqsSender
from infra.retry import wait_until_available
from infra.wakeup import Listener, Notifier
from schema.lifecycle import EntryType

if TYPE_CHECKING:
    from infra.settings import Settings


async def serve(settings: Settings, worker: str, stop: asyncio.Event) -> None:
    """Relay and repair until ``stop``; wait for neighbours that are away, not ready meanwhile."""
    kinds = load_kinds(settings.kinds)
    health = Health(settings.liveness_timeout_seconds)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            Database.from_settings(settings, name=f"haulage dispatcher {worker}")
        )
        health.checks["database"] = lambda: check_at_head(database)
        senders = await _senders(settings, stack)
        for entry_type, sender in senders.items():
            health.checks[f"queue {entry_type}"] = sender.ping
        listener = Listener(settings, name=f"haulage dispatcher {worker}")
        notifier = Notifier(database, enabled=settings.notify)
        relay = Relay(
            database,
            senders,
            listener,
            settings,
            worker=worker,
            turned=lambda: health.turned("relay"),
        )
        services = (
            Reaper(
                database,
                worker=worker,
                backoffs={name: kind.backoff for name, kind in kinds.items()},
                most=settings.maintenance_batch,
                wake=notifier.notify,
            ),
            Resender(
                database,
                after_seconds=settings.resend_after_seconds,
                most=settings.maintenance_batch,
                wake=notifier.notify,
            ),
            Finalizer(database, most=settings.maintenance_batch),
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(
                serve_health(
                    health, host=settings.health_host, port=settings.health_port, stop=stop
                ),
                name="health",
            )
            side = [
                group.create_task(listener.run(), name="listener"),
                group.create_task(notifier.run(), name="notifier"),
            ]
            if await wait_until_available("database", lambda: check_at_head(database), stop):
                async with asyncio.TaskGroup() as work:
                    if senders:
                        work.create_task(relay.run(stop), name="relay")
                    work.create_task(
                        run_services(
                            services,
                            interval_seconds=settings.maintenance_interval_seconds,
                            stop=stop,
                            turned=health.turned,
                        ),
                        name="maintenance",
                    )
            health.draining = True
            for task in side:
                task.cancel()


async def _senders(settings: Settings, stack: AsyncExitStack) -> dict[EntryType, SqsSender]:
    """Give a sender for each type of entry that this mode sends; without SQS there is none."""
    urls = {EntryType.EVENT: settings.events_queue_url}
    if settings.consumer_mode == "sqs-consumer":
        urls[EntryType.INPUTS] = settings.queue_url
    if not any(urls.values()):
        return {}
    client = await stack.enter_async_context(Clients(settings).sqs())
    return {
        entry_type: SqsSender(client, queue_url=url, limit_bytes=settings.max_message_bytes)
        for entry_type, url in urls.items()
        if url
    }


if __name__ == "__main__":
    sys.exit(run("dispatcher", serve))
