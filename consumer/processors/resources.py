"""Opens what processors are lent, in the consumer and in the children of isolated kinds alike."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from consumer.processors.protocol import Resources
from infra.database import Database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from infra.settings import Settings
    from infra.storage import Storage

_CHILD_POOL_SIZE = 2


@asynccontextmanager
async def open_storage(settings: Settings) -> AsyncIterator[Storage | None]:
    """Give storage where a bucket is set; kinds that need one say so when they are loaded."""
    if settings.bucket is None:
        yield None
        return
    # Only here: the AWS client is a quarter of a child's memory and a third of its start.
    from infra.clients import Clients  # noqa: PLC0415
    from infra.storage import Storage  # noqa: PLC0415

    async with Clients(settings).s3() as client:
        yield Storage(client, settings)


@asynccontextmanager
async def open_child_resources(settings: Settings, *, name: str) -> AsyncIterator[Resources]:
    """Give a child resources of its own; its pool connects on first use and stays small."""
    settings = settings.model_copy(
        update={"database_pool_size": min(_CHILD_POOL_SIZE, settings.database_pool_size)}
    )
    async with (
        Database.from_settings(settings, name=name) as database,
        open_storage(settings) as storage,
    ):
        yield Resources(settings, database, storage)
