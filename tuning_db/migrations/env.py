"""Alembic's entry point: runs the migrations on the connection that tuning_db.schema.upgrade hands over."""

from __future__ import annotations

from alembic import context

from tuning_db.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,  # SQLite can, Alembic only assumes that it cannot
)
with context.begin_transaction():
    context.run_migrations()
