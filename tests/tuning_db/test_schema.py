"""The migrations make the tables that the code queries, and the code knows every revision."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tests.tuning_db.backends import engine_of, migrate, migrations
from tests.tuning_db.made import CONV, LAPTOP, trial
from tuning_db import schema
from tuning_db.store import Store, open_db


def test_the_migrations_make_the_tables_that_are_queried(store: Store) -> None:
    with store.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []
        assert schema.revision_of(connection) == schema.REVISIONS[-1]


def test_every_migration_is_a_known_revision() -> None:
    script = ScriptDirectory.from_config(migrations())
    assert tuple(r.revision for r in reversed(list(script.walk_revisions()))) == schema.REVISIONS


@pytest.mark.parametrize("revision", schema.REVISIONS[:-1])
def test_a_database_of_an_older_schema_is_brought_up_to_date(url: str, path: Path, revision: str) -> None:
    engine = engine_of(url)
    with engine.begin() as connection:
        migrate(connection, revision)
        connection.execute(sqlalchemy.insert(schema.workloads).values(key=CONV.key, op=CONV.op))
    before = path.read_bytes() if url == str(path) else None
    with open_db(url, read_only=True) as store:  # it can be read as it is
        assert (list(store.trials()), store.stats().trials) == ([], 0)
        assert store.best(CONV, LAPTOP) is None
    assert before is None or path.read_bytes() == before
    with engine.begin() as connection:
        assert schema.revision_of(connection) == revision
    engine.dispose()
    with open_db(url) as store:
        store.add(trial(1))
        with store.reading() as connection:
            assert schema.revision_of(connection) == schema.REVISIONS[-1]
            assert connection.scalars(sqlalchemy.select(schema.workloads.c.key)).all() == [CONV.key]
            assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []
    with open_db(url, read_only=True) as store:
        assert list(store.trials()) == [trial(1)]
