"""Databases for tests: real SQLite files, and PostgreSQL where EDGETUNE_TEST_POSTGRES names a database to fill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.disks import small_file_system
from tests.tuning_db.backends import BACKENDS, new_database
from tuning_db.store import Store, open_db


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuning.db"


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, path: Path) -> str:
    """Of a database that does not exist yet, or is empty."""
    return new_database(request.param, path)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_db(url) as store:
        yield store


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    with small_file_system(tmp_path / "disk", "1m") as folder:
        yield folder
