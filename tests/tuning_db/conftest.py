"""Databases for tests: real SQLite files, and PostgreSQL where EDGETUNE_TEST_POSTGRES names a database to fill."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy

from tuning_db import schema
from tuning_db.store import Store, open_db

POSTGRES = "EDGETUNE_TEST_POSTGRES"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuning.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, path: Path) -> str:
    """Of a database that does not exist yet, or is empty."""
    if request.param == "sqlite":
        return str(path)
    url = os.environ.get(POSTGRES)
    if url is None:
        pytest.skip(f"set {POSTGRES} to the URL of an empty database to test with PostgreSQL")
    engine = sqlalchemy.create_engine(sqlalchemy.make_url(url).set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        schema.metadata.drop_all(connection)
        connection.exec_driver_sql("DROP TABLE IF EXISTS alembic_version")
    engine.dispose()
    return url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_db(url) as store:
        yield store


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
