"""Alembic's entry: ``infra.migrate`` hands over an open connection in its own transaction."""

from __future__ import annotations

from alembic import context

from schema.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    compare_server_default=True,
    transactional_ddl=True,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
