"""Databases of both kinds for tests: SQLite files, and PostgreSQL where EDGETUNE_TEST_POSTGRES names one to fill."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sqlalchemy
from alembic import command
from alembic.config import Config

import tuning_db
from tuning_db import schema

BACKENDS = ("sqlite", "postgresql")
POSTGRES = "EDGETUNE_TEST_POSTGRES"


def engine_of(url: str) -> sqlalchemy.Engine:
    """Of a file's path or of PostgreSQL's URL, past the store."""
    if "://" not in url:
        return sqlalchemy.create_engine(f"sqlite:///{url}")
    return sqlalchemy.create_engine(sqlalchemy.make_url(url).set(drivername="postgresql+psycopg"))


def migrations() -> Config:
    config = Config()
    config.set_main_option("path_separator", "os")
    config.set_main_option("script_location", str(Path(tuning_db.__file__).parent / "migrations"))
    return config


def migrate(connection: sqlalchemy.Connection, revision: str) -> None:
    """To the tables that an edgetune of this revision had."""
    config = migrations()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def new_database(backend: str, path: Path) -> str:
    """Return the URL of a database that does not exist yet, or is empty; skip the test where there is none. Each of
    xdist's workers has a schema of its own in PostgreSQL."""
    if backend == "sqlite":
        return str(path)
    url = os.environ.get(POSTGRES)
    if url is None:
        pytest.skip(f"set {POSTGRES} to the URL of an empty database to test with PostgreSQL")
    engine = engine_of(url)
    with engine.begin() as connection:
        if (worker := os.environ.get("PYTEST_XDIST_WORKER")) is not None:
            connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {worker}")
            url += f"{'&' if '?' in url else '?'}options=-csearch_path%3D{worker}"
    engine.dispose()
    engine = engine_of(url)
    with engine.begin() as connection:
        schema.metadata.drop_all(connection)
        connection.exec_driver_sql("DROP TABLE IF EXISTS alembic_version")
    engine.dispose()
    return url
