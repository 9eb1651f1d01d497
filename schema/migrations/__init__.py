"""Alembic's environment and the migrations, in order."""
