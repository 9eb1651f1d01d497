"""``python -m consumer``: build the consumer of the chosen mode and run it."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from consumer.assembly import assemble
from consumer.processors.loading import load_runners
from consumer.processors.protocol import Resources
from consumer.processors.resources import open_storage
from consumer.watchdog import Watchdog
from infra.backlog import Scaling
from infra.clients import Clients
from infra.database import Database
from infra.http import Health, serve_health
from infra.kinds import choose_kinds, load_kinds
from infra.migrate import check_at_head
from infra.process import run
from infra.queue.outbox import OutboxQueue
from infra.queue.sqs import SqsQueue
from infra.retry import wait_until_available
from infra.telemetry.opening import open_instruments
from infra.wakeup import Listener, Notifier

if TYPE_CHECKING:
    from collections.abc import Collection

    from infra.queue.protocol import Queue
    from infra.settings import Settings
    from infra.telemetry.instruments import Instruments


async def serve(settings: Settings, worker: str, stop: asyncio.Event) -> None:
    """Consume until ``stop``, then drain; wait for neighbours that are away, not ready then."""
    kinds = choose_kinds(
        load_kinds(settings.kinds, settings.kind_policies), settings.consumer_kinds
    )
    health = Health(settings.liveness_timeout_seconds, stop=stop)
    async with AsyncExitStack() as stack:
        instruments = await stack.enter_async_context(
            open_instruments(
                settings,
                process="consumer",
                worker=worker,
                is_exposed=settings.is_exposed_beside_health,
            )
        )
        instruments.metrics.consumes(kinds)
        database = await stack.enter_async_context(
            Database.from_settings(
                settings, name=f"haulage consumer {worker}", metrics=instruments.metrics
            )
        )
        scaling = Scaling(database, concurrency=settings.concurrency)
        health.pages["/scaling"] = scaling.page
        health.expose(instruments.exposition)
        clients = Clients(settings)
        listener = Listener(settings, name=f"haulage consumer {worker}")
        notifier = Notifier(database, enabled=settings.notify)
        queue = await _queue(
            settings, worker, database, clients, listener, kinds, instruments, stack
        )
        health.checks |= {
            "database": database.ping,
            "migrations": partial(check_at_head, database),
            "queue": queue.ping,
        }
        storage = await stack.enter_async_context(open_storage(settings))
        if storage is not None:
            health.checks["storage"] = storage.ping
        drained = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(
                serve_health(
                    health, host=settings.health_host, port=settings.health_port, stop=drained
                ),
                name="health",
            )
            watchdog = Watchdog(
                limit_seconds=settings.blocked_loop_seconds or settings.lease_seconds
            )
            background = [
                group.create_task(watchdog.run(), name="watchdog"),
                group.create_task(listener.run(), name="listener"),
                group.create_task(instruments.metrics.watch_loop(), name="loop lag"),
                group.create_task(notifier.run(), name="notifier"),
            ]
            if await wait_until_available("database", lambda: check_at_head(database), stop):
                runners = await stack.enter_async_context(
                    load_runners(kinds, Resources(settings, database, storage), stop)
                )
                consumer = assemble(
                    settings,
                    worker,
                    database,
                    queue,
                    runners,
                    kinds,
                    stop,
                    health=health,
                    control=listener.controls(),
                    instruments=instruments,
                    tell=notifier.notify_control,
                    wake=notifier.notify,
                )
                scaling.mine = consumer.load
                await consumer.run(stop)
            drained.set()
            for task in background:
                task.cancel()


async def _queue(
    settings: Settings,
    worker: str,
    database: Database,
    clients: Clients,
    listener: Listener,
    kinds: Collection[str],
    instruments: Instruments,
    stack: AsyncExitStack,
) -> Queue:
    """Build the delivery of the chosen mode: the one place that knows it."""
    queue_url = settings.work_queue_url
    if queue_url is None:
        return OutboxQueue(
            database,
            listener,
            worker=worker,
            kinds=list(kinds),
            lease_seconds=settings.lease_seconds,
            poll_floor_seconds=settings.poll_floor_seconds,
            instruments=instruments,
        )
    return SqsQueue(
        await stack.enter_async_context(clients.sqs()),
        await stack.enter_async_context(clients.sqs_receiving()),
        database,
        queue_url=queue_url,
        worker=worker,
        kinds=kinds,
        lease_seconds=settings.lease_seconds,
        wait_seconds=settings.receive_wait_seconds,
        calls_at_once=settings.receipt_calls,
        unknown_kind_delay_seconds=settings.unknown_kind_delay_seconds,
        instruments=instruments,
    )


if __name__ == "__main__":
    sys.exit(run("consumer", serve))
