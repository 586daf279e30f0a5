"""Processes killed at any moment, several at once, and disks that fill up: what was committed stays."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import event

from tests.tuning_db.made import trial
from tests.tuning_db.writer import __name__ as WRITER
from tuning_db import maintain
from tuning_db.logs import trial_of
from tuning_db.record import Trial
from tuning_db.store import DatabaseError, Store, open_db

ROOT = Path(__file__).parents[2]


def start_writer(path: Path, label: str, count: int | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", WRITER, str(path), label, *([] if count is None else [str(count)])]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def wait_for_line(writer: subprocess.Popen[str]) -> str:
    assert writer.stdout is not None
    return writer.stdout.readline()


def kill(writer: subprocess.Popen[str]) -> list[Trial]:
    """SIGKILL; returns the trials that the writer said it had committed and nobody has read yet."""
    writer.kill()
    output, _ = writer.communicate()
    return [trial_of(line) for line in output.splitlines(keepends=True) if line.endswith("}\n")]


def integrity(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


def test_kill_9_loses_no_committed_trial(path: Path) -> None:
    rng = random.Random(2)
    acknowledged: set[Trial] = set()
    for round_ in range(10):
        writers = [start_writer(path, f"{round_}.{number}") for number in range(2)]
        pids = [writer.pid for writer in writers]
        for writer in writers:
            wait_for_line(writer)  # "opening"
            acknowledged.add(trial_of(wait_for_line(writer)))
        for writer in writers:
            time.sleep(rng.uniform(0, 0.06))
            acknowledged.update(kill(writer))
        with open_db(path, create=False) as store:
            assert acknowledged <= set(store.trials())
            owners = [int(entry.owner.rsplit(":", 1)[1]) for entry in store.in_flight()]
            assert all(owners.count(pid) <= 1 for pid in pids)  # one was being measured, not more
            assert list(maintain.verify(store)) == []
    assert integrity(path) == "ok"
    assert len(acknowledged) > 20


def test_kill_9_while_the_database_is_created(tmp_path: Path) -> None:
    rng = random.Random(3)
    for round_ in range(5):
        path = tmp_path / f"{round_}.db"
        writer = start_writer(path, "first")
        wait_for_line(writer)
        time.sleep(rng.uniform(0, 0.25))
        acknowledged = kill(writer)
        with open_db(path) as store:
            assert set(acknowledged) <= set(store.trials())
            assert store.add(trial(-1))
        assert integrity(path) == "ok"


def test_two_processes_create_and_fill_one_database(path: Path) -> None:
    writers = [start_writer(path, str(number), 60) for number in range(3)]
    assert [len(writer.communicate()[0].splitlines()) for writer in writers] == [61] * 3
    assert [writer.returncode for writer in writers] == [0] * 3
    with open_db(path, create=False) as store:
        assert store.stats().trials == 180
        assert store.in_flight() == []
        assert list(maintain.verify(store)) == []


def test_a_writer_waits_for_another(path: Path) -> None:
    with open_db(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writer = start_writer(path, "waiting", 1)
        wait_for_line(writer)
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(1.5)  # it neither fails nor goes on
        other.execute("COMMIT")
        assert len(writer.communicate()[0].splitlines()) == 1
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
