"""A device and an empty database for every session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.devices import Device, open_device
from tuning_db.store import Store, open_db


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("cpu", 1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_db(tmp_path / "t.db") as opened:
        yield opened
