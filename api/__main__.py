"""``python -m api``: serve HTTP until told to stop."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import TYPE_CHECKING

from api.app import build_app
from infra.database import Database
from infra.http import Health, serve_http
from infra.kinds import load_kinds
from infra.migrate import check_at_head
from infra.process import run
from infra.telemetry.opening import open_instruments
from infra.wakeup import Notifier

if TYPE_CHECKING:
    from infra.settings import Settings

# Nobody's request keeps a connection for longer because somebody holds a row of a job: a few of
# them would leave the others, and readiness, without one.
_LOCK_SECONDS = 2.0


async def serve(settings: Settings, worker: str, stop: asyncio.Event) -> None:
    """Serve until ``stop``, and for a while after it as one that is not ready; finish what is open.

    Postgres may come and go meanwhile.
    """
    kinds = load_kinds(settings.kinds, settings.kind_policies)
    async with (
        open_instruments(
            settings, process="api", worker=worker, is_exposed=settings.api_prometheus
        ) as instruments,
        Database.from_settings(
            settings,
            name=f"haulage api {worker}",
            lock_seconds=_LOCK_SECONDS,
            metrics=instruments.metrics,
        ) as database,
    ):
        notifier = Notifier(database, enabled=settings.notify)
        health = Health(
            settings.liveness_timeout_seconds,
            stop=stop,
            checks={"database": database.ping, "migrations": partial(check_at_head, database)},
        )
        health.expose(instruments.exposition)
        app = build_app(
            settings,
            database=database,
            notifier=notifier,
            kinds=kinds,
            health=health,
            instruments=instruments,
        )
        closing = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            side = [
                group.create_task(
                    _close_after(stop, settings.api_drain_delay_seconds, closing), name="closing"
                ),
                group.create_task(notifier.run(), name="notifier"),
                group.create_task(instruments.metrics.watch_loop(), name="loop lag"),
            ]
            await serve_http(app, host=settings.api_host, port=settings.api_port, stop=closing)
            for task in side:
                task.cancel()


async def _close_after(stop: asyncio.Event, seconds: float, closing: asyncio.Event) -> None:
    """Leave whoever routes requests the time to see that this process is not ready any more."""
    await stop.wait()
    await asyncio.sleep(seconds)
    closing.set()


if __name__ == "__main__":
    sys.exit(run("api", serve))
