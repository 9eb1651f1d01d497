"""The project's database in the local cluster."""

import asyncpg

from localstack.postgres import Cluster

NAME = ROLE = "haulage"


async def create(cluster: Cluster) -> str:
    """The URL of the database, made when it is missing; its owner is no superuser.

    So that what would be refused in production is refused here as well.
    """
    connection = await asyncpg.connect(cluster.socket_url())
    try:
        if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", ROLE):
            # The password is made of letters, digits, - and _; parameters are not allowed here.
            await connection.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{cluster.password}'")
        if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", NAME):
            await connection.execute(f"CREATE DATABASE {NAME} OWNER {ROLE}")
    finally:
        await connection.close()
    return cluster.url(NAME, ROLE)


async def forget_what_aws_lost(url: str) -> None:
    """Forget which files exist and which messages were sent: LocalStack starts empty.

    Otherwise a job would be told to reuse files that were lost with the last LocalStack, and
    work whose message was lost with it would wait until it is sent again for its age.
    """
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("DELETE FROM artifact")
        await connection.execute(
            "UPDATE outbox SET state = 'PENDING', sent_at = NULL WHERE state = 'SENT'"
        )
    finally:
        await connection.close()


async def query(url: str, statement: str) -> str:
    """Run one statement and return its rows as lines of columns, or what it did."""
    connection = await asyncpg.connect(url)
    try:
        prepared = await connection.prepare(statement)
        rows = await prepared.fetch()
        names = [attribute.name for attribute in prepared.get_attributes()]
        if not names:
            return prepared.get_statusmsg() or ""
        cells = [names, *[[_text(value) for value in row] for row in rows]]
    finally:
        await connection.close()
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def _text(value: object) -> str:
    return "NULL" if value is None else str(value)
