"""Processes killed at any moment, several at once, and disks that fill up: what was committed stays."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import time
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import event

from tests.tuning_db.made import trial
from tests.tuning_db.writer import Writer, together
from tuning_db import maintain
from tuning_db.record import Trial
from tuning_db.store import DatabaseError, Store, open_db


def integrity(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


@pytest.mark.sampled(2)
def test_kill_9_loses_no_committed_trial(path: Path) -> None:
    rng = random.Random(2)
    acknowledged: set[Trial] = set()
    for round_ in range(10):
        writers = [Writer(path, f"{round_}.{number}") for number in range(2)]
        for writer in writers:
            acknowledged.add(writer.next_trial())
        for writer in writers:
            time.sleep(rng.uniform(0, 0.06))
            acknowledged.update(writer.kill())
        with open_db(path, create=False) as store:
            assert acknowledged <= set(store.trials())
            owners = [int(entry.owner.rsplit(":", 1)[1]) for entry in store.in_flight()]
            assert all(owners.count(writer.pid) <= 1 for writer in writers)  # one was being measured, not more
            assert list(maintain.verify(store)) == []
    assert integrity(path) == "ok"
    assert len(acknowledged) > 20


def test_kill_9_while_the_database_is_created(tmp_path: Path) -> None:
    rng = random.Random(3)
    for round_ in range(12):
        path = tmp_path / f"{round_}.db"
        writer = Writer(path, "first")
        time.sleep(rng.uniform(0, 0.15))
        acknowledged = writer.kill()
        with open_db(path) as store:
            assert set(acknowledged) <= set(store.trials())
            assert store.add(trial(-1))
        assert integrity(path) == "ok"


def test_several_processes_create_and_fill_one_database(path: Path) -> None:
    writers = [Writer(path, str(number), 60) for number in range(3)]
    assert [len(writer.finish()) for writer in writers] == [60] * 3
    with open_db(path, create=False) as store:
        assert store.stats().trials == 180
        assert store.in_flight() == []
        assert list(maintain.verify(store)) == []


@pytest.mark.sampled(2)
def test_32_processes_write_at_the_same_time_and_nothing_is_lost(url: str) -> None:
    start = together(32)
    writers = [Writer(url, str(number), 12, start) for number in range(32)]
    acknowledged = [trial for writer in writers for trial in writer.finish()]
    assert len(acknowledged) == 32 * 12
    with open_db(url, create=False) as store:
        assert set(store.trials()) == set(acknowledged)
        assert store.stats().trials == len(acknowledged)
        assert store.in_flight() == []
        assert list(maintain.verify(store)) == []


def test_a_writer_waits_for_another(path: Path) -> None:
    with open_db(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writer = Writer(path, "waiting", 1)
        assert not writer.has_committed(1.0)
        other.execute("COMMIT")
        assert len(writer.finish()) == 1
        assert store.stats().trials == 1


def _add_until_it_fails(store: Store, committed: list[Trial]) -> None:
    for tile in count():
        made = trial(tile)
        store.add(made)
        committed.append(made)


def _fill(store: Store) -> int:
    """Add trials until there is no space; returns how many were committed."""
    committed: list[Trial] = []
    with pytest.raises(DatabaseError, match="its disk is full: free some space"):
        _add_until_it_fails(store, committed)
    return len(committed)


def test_a_full_database_file_keeps_what_was_committed(path: Path) -> None:
    with open_db(path) as store:
        store.add(trial(-1))
    with open_db(path) as store:

        @event.listens_for(store._engine, "connect")
        def limit(connection: sqlite3.Connection, _: object) -> None:
            connection.execute("PRAGMA max_page_count = 40")

        store._engine.dispose()
        committed = _fill(store)
        assert committed > 20
        with pytest.raises(DatabaseError, match="is full"):
            store.add_many(trial(tile) for tile in range(10_000, 12_000))
        assert store.stats().trials == committed + 1
        assert list(maintain.verify(store)) == []


def test_a_full_disk_keeps_what_was_committed_and_goes_on_when_there_is_space(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 500_000)
    with open_db(small_disk / "t.db") as store:
        committed = _fill(store)
        assert committed > 20
        assert store.stats().trials == committed
        ballast.unlink()
        assert store.add(trial(-1))
        assert list(maintain.verify(store)) == []
    with open_db(small_disk / "t.db", create=False) as store:
        assert store.stats().trials == committed + 1


@pytest.mark.parametrize("free", [0, 4096, 12_288, 20_480, 40_960])
def test_a_database_that_cannot_be_created_leaves_nothing(small_disk: Path, free: int) -> None:
    (small_disk / "ballast").write_bytes(b"x" * (shutil.disk_usage(small_disk).free - free))
    with pytest.raises(DatabaseError, match="full"):
        open_db(small_disk / "t.db")
    assert os.listdir(small_disk) == ["ballast"]
