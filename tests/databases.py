"""A migrated database for each test: cloned from one template, dropped when the test is over."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import asyncpg

from infra.migrate import migrate
from localstack.postgres import Cluster


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def make_template(cluster: Cluster) -> str:
    name = f"template_{uuid4().hex[:8]}"
    asyncio.run(execute(cluster.url(), f"CREATE DATABASE {name}"))
    asyncio.run(migrate(cluster.url(name)))
    return name


@contextmanager
def cloned(cluster: Cluster, template: str) -> Iterator[str]:
    """Give the URL of a fresh clone."""
    name = f"test_{uuid4().hex[:12]}"
    asyncio.run(execute(cluster.url(), f"CREATE DATABASE {name} TEMPLATE {template}"))
    try:
        yield cluster.url(name)
    finally:
        asyncio.run(execute(cluster.url(), f"DROP DATABASE {name} WITH (FORCE)"))
