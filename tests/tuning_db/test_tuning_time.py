"""Time spent on tuning: additive, per workload and device, and there after an upgrade of an older database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.tuning_db.backends import engine_of, migrate
from tuning_db import schema
from tuning_db.maintain import verify
from tuning_db.record import DeviceKey, Workload
from tuning_db.store import open_db
from tuning_db.tuning_time import TuningTime, add_tuning_time, tuning_times_by_id, tuning_times_of

DEVICE = DeviceKey("cpu", "x86_64-avx2", "haswell", {"threads": 2})
OTHER = DeviceKey("cpu", "x86_64-avx2", "haswell", {"threads": 1})
A, B, C = (Workload("dense", {"rows": rows}) for rows in (1, 2, 3))


def test_seconds_add_up_per_workload_and_device(tmp_path: Path) -> None:
    with open_db(tmp_path / "t.db") as store:
        add_tuning_time(store, {A: TuningTime(1.5, 1.0, 0.25), B: TuningTime()}, DEVICE)
        add_tuning_time(store, {A: TuningTime(2.25, 1.0, 0.5)}, DEVICE)
        add_tuning_time(store, {A: TuningTime(100.0)}, OTHER)
        add_tuning_time(store, {}, DEVICE)
        assert tuning_times_of(store, [A, B, C], DEVICE) == {A: TuningTime(3.75, 2.0, 0.75), B: TuningTime()}
        assert tuning_times_of(store, [B], OTHER) == {}
        assert list(verify(store)) == []
    with open_db(tmp_path / "t.db", read_only=True) as store:
        assert tuning_times_of(store, [A], OTHER) == {A: TuningTime(100.0)}
        with store.reading() as connection:
            assert sorted(e.seconds for e in tuning_times_by_id(connection).values()) == [0.0, 3.75, 100.0]


def test_a_database_of_the_first_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    open_db(path).close()
    with sqlite3.connect(path) as connection:  # what the first schema left: everything but these tables
        for table in ("efforts", "claims", "wishes"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("UPDATE alembic_version SET version_num = ?", (schema.REVISIONS[0],))
    connection.close()
    with open_db(path) as store:
        add_tuning_time(store, {A: TuningTime(1.0)}, DEVICE)
        assert tuning_times_of(store, [A], DEVICE) == {A: TuningTime(1.0)}


@pytest.mark.parametrize("revision", schema.REVISIONS)
def test_what_an_older_edgetune_left_is_read_as_it_is(tmp_path: Path, revision: str) -> None:
    engine = engine_of(str(tmp_path / "old.db"))
    with engine.begin() as connection:
        migrate(connection, revision)
        has_efforts = revision != schema.REVISIONS[0]
        if has_efforts:
            for statement in (
                "INSERT INTO workloads (id, key, op) VALUES (3, 'w', 'o')",
                "INSERT INTO devices (id, key, kind, family) VALUES (4, 'd', 'k', 'f')",
                "INSERT INTO efforts (workload_id, device_id, seconds) VALUES (3, 4, 2.5)",
            ):
                connection.exec_driver_sql(statement)
    engine.dispose()
    with open_db(tmp_path / "old.db", read_only=True) as store, store.reading() as connection:
        assert tuning_times_by_id(connection) == ({(3, 4): TuningTime(2.5)} if has_efforts else {})
