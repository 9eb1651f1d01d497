"""A consumer of poisonous kinds inside the test, and what its child processes came to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import psutil

from consumer.processors.loading import load_runners
from consumer.processors.protocol import Resources
from schema.kinds import Kind
from tests import poison
from tests.deliveries import Delivery
from tests.platform import Platform


@asynccontextmanager
async def consuming(
    delivery: Delivery, *kinds: Kind, **changes: Any
) -> AsyncIterator[asyncio.Event]:
    """Run a consumer of these kinds, its processors loaded as the real one does; gives ``stop``."""
    chosen = {kind.name: kind for kind in kinds}
    settings = delivery.settings.model_copy(update={"kinds": poison.REFERENCES} | changes)
    delivery = replace(delivery, settings=settings, kinds=chosen)
    resources = Resources(settings, delivery.database, None)
    async with load_runners(chosen, resources, asyncio.Event()) as runners:
        async with delivery.consuming(runners) as stop:
            yield stop


async def outcomes(platform: Platform, job_id: UUID) -> dict[int, tuple[str, int, str | None]]:
    """Give status, attempts and error class of each input."""
    rows = await platform.rows(
        "SELECT ordinal, status, attempts, error_class FROM input WHERE job_id = :id", id=job_id
    )
    return {row.ordinal: (row.status, row.attempts, row.error_class) for row in rows}


def children() -> list[psutil.Process]:
    """Give the children of isolated kinds, and whatever is dead and not yet collected."""
    return [
        process
        for process in psutil.Process().children()
        if process.status() == psutil.STATUS_ZOMBIE
        or "consumer.processors.child" in process.cmdline()
    ]
