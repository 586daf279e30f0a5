"""This is Alembic's entry point, which runs the migrations on the connection that tuning_db.schema.upgrade passes."""

from __future__ import annotations

from alembic import context

from tuning_db.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,  # SQLite supports it, although Alembic assumes that it does not
)
with context.begin_transaction():
    context.run_migrations()
