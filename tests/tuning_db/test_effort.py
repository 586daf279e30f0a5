"""Time spent on tuning: additive, per workload and device, and there after an upgrade of an older database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tuning_db import schema
from tuning_db.effort import add_effort, efforts_of
from tuning_db.maintain import verify
from tuning_db.record import DeviceKey, Workload
from tuning_db.store import open_db

DEVICE = DeviceKey("cpu", "x86_64-avx2", "haswell", {"threads": 2})
OTHER = DeviceKey("cpu", "x86_64-avx2", "haswell", {"threads": 1})
A, B, C = (Workload("dense", {"rows": rows}) for rows in (1, 2, 3))


def test_seconds_add_up_per_workload_and_device(tmp_path: Path) -> None:
    with open_db(tmp_path / "t.db") as store:
        add_effort(store, {A: 1.5, B: 0.0}, DEVICE)
        add_effort(store, {A: 2.25}, DEVICE)
        add_effort(store, {A: 100.0}, OTHER)
        add_effort(store, {}, DEVICE)
        assert efforts_of(store, [A, B, C], DEVICE) == {A: 3.75, B: 0.0}
        assert efforts_of(store, [B], OTHER) == {}
        assert list(verify(store)) == []
    with open_db(tmp_path / "t.db", read_only=True) as store:
        assert efforts_of(store, [A], OTHER) == {A: 100.0}


def test_a_database_of_the_first_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    open_db(path).close()
    with sqlite3.connect(path) as connection:  # what the first schema left: everything but these tables
        for table in ("efforts", "claims", "wishes"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("UPDATE alembic_version SET version_num = ?", (schema.REVISIONS[0],))
    connection.close()
    with open_db(path) as store:
        add_effort(store, {A: 1.0}, DEVICE)
        assert efforts_of(store, [A], DEVICE) == {A: 1.0}
