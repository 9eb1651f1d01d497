"""Alembic's entry: ``infra.migrate`` hands over a connection within a transaction of its own."""

from __future__ import annotations

from alembic import context

from schema.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    compare_server_default=True,
    transactional_ddl=True,
)
context.run_migrations()
