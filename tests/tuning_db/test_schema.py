"""The migrations make the tables that the code queries, and the code knows every revision."""

from __future__ import annotations

from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import tuning_db
from tuning_db import schema
from tuning_db.store import Store


def test_the_migrations_make_the_tables_that_are_queried(store: Store) -> None:
    with store.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []
        assert schema.revision_of(connection) == schema.REVISIONS[-1]


def test_every_migration_is_a_known_revision() -> None:
    config = Config()
    config.set_main_option("path_separator", "os")
    config.set_main_option("script_location", str(Path(tuning_db.__file__).parent / "migrations"))
    script = ScriptDirectory.from_config(config)
    assert tuple(r.revision for r in reversed(list(script.walk_revisions()))) == schema.REVISIONS
