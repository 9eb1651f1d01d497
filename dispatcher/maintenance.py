"""Maintenance: small services, each with one duty, safe in any number of instances."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import structlog

from infra.retry import jittered, sleep_unless, until_database
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

    While a neighbour is away each tries again, never more rarely than every five seconds, which is
    told once for all of them.
    ``wakes`` has an event for services, by name, that need not wait for their interval.
    """
    outage = _Outage()
    async with asyncio.TaskGroup() as group:
        for service in services:
            # Until its first good round, a loop is as old as its start.
            turned(service.name)
            woken = (wakes or {}).get(service.name) or asyncio.Event()
            group.create_task(
                _repeat(service, interval_seconds, stop, turned, woken, outage),
                name=f"maintenance {service.name}",
            )


@dataclass(slots=True)
class _Outage:
    """Which duties met a neighbour that is away: told when the first did, and when none does."""

    met: set[str] = field(default_factory=set)

    def begin(self, service: str, error: Unavailable, *, retry_in_seconds: float) -> None:
        if not self.met:
            log.warning(
                "maintenance.away",
                service=service,
                error=str(error),
                retry_in_seconds=round(retry_in_seconds, 2),
            )
        self.met.add(service)

    def end(self, service: str) -> None:
        if service in self.met:
            self.met.remove(service)
            if not self.met:
                log.info("maintenance.recovered", service=service)


async def _repeat(
    service: MaintenanceService,
    interval_seconds: float,
    stop: asyncio.Event,
    turned: Callable[[str], None],
    woken: asyncio.Event,
    outage: _Outage,
) -> None:
    failures, told = 0, ""
    # After a failure no wake-up counts: it says that there is something to do, not that it can be.
    pause, back_off = sleep_unless(stop, woken), sleep_unless(stop)
    while not stop.is_set():
        woken.clear()
        try:
            found = await service.once()
        except Unavailable as error:
            failures += 1
            wait = until_database(failures, cap_seconds=min(interval_seconds, 5))
            outage.begin(service.name, error, retry_in_seconds=wait)
            await back_off(wait)
            continue
        except Exception as error:  # one duty that cannot be done must not end the others
            outage.end(service.name)
            failures += 1
            said = f"{type(error).__name__}: {error}"[:_TOLD_APART]
            if said != told:
                log.exception("maintenance.failed", service=service.name, failures=failures)
            told = said
            longest = jittered(failures, base_seconds=interval_seconds, cap_seconds=60)
            # The loop itself is not stuck: a restart would only end the other duties too.
            for _ in range(max(1, round(longest / interval_seconds))):
                turned(service.name)
                await back_off(interval_seconds * random.uniform(0.8, 1.2))  # noqa: S311
            continue
        outage.end(service.name)
        failures, told = 0, ""
        turned(service.name)
        # Instances drift apart, so that they do not all ask at the same moment.
        if not found:
            await pause(interval_seconds * random.uniform(0.8, 1.2))  # noqa: S311
