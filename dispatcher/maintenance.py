"""Maintenance: small services, each with one duty, safe in any number of instances."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Protocol

import structlog

from infra.retry import jittered, sleep_unless
from schema.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_TOLD_APART = 500


class MaintenanceService(Protocol):
    """One duty."""

    name: str

    async def once(self) -> int:
        """Do one bounded batch; return how much was found, 0 when there was nothing."""
        ...


async def run_services(
    services: Sequence[MaintenanceService],
    *,
    interval_seconds: float,
    stop: asyncio.Event,
    turned: Callable[[str], None],
    wakes: Mapping[str, asyncio.Event] | None = None,
) -> None:
    """Run each service every interval, at once again while it finds work, until ``stop``.

    ``wakes`` has an event for services, by name, that need not wait for their interval.
    """
    async with asyncio.TaskGroup() as group:
        for service in services:
            woken = (wakes or {}).get(service.name) or asyncio.Event()
            group.create_task(
                _repeat(service, interval_seconds, stop, turned, woken),
                name=f"maintenance {service.name}",
            )


async def _repeat(
    service: MaintenanceService,
    interval_seconds: float,
    stop: asyncio.Event,
    turned: Callable[[str], None],
    woken: asyncio.Event,
) -> None:
    away = False
    failures, told = 0, ""
    pause = sleep_unless(stop, woken)
    while not stop.is_set():
        found = 0
        woken.clear()
        try:
            found = await service.once()
        except Unavailable as error:
            if not away:
                log.warning("maintenance.away", service=service.name, error=str(error))
            away = True
        except Exception as error:  # one duty that cannot be done must not end the others
            failures += 1
            said = f"{type(error).__name__}: {error}"[:_TOLD_APART]
            if said != told:
                log.exception("maintenance.failed", service=service.name, failures=failures)
            told = said
            longest = jittered(failures, base_seconds=interval_seconds, cap_seconds=60)
            # The loop itself is not stuck: a restart would only end the other duties too.
            for _ in range(max(1, round(longest / interval_seconds))):
                turned(service.name)
                await pause(interval_seconds * random.uniform(0.8, 1.2))  # noqa: S311
            continue
        else:
            away, failures, told = False, 0, ""
            turned(service.name)
        # Instances drift apart, so that they do not all ask at the same moment.
        if not found:
            await pause(interval_seconds * random.uniform(0.8, 1.2))  # noqa: S311
