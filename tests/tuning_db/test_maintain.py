"""Merging, pruning and verifying."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tuning_db.made import CONV, LAPTOP, NOON, trial
from tests.tuning_db.test_store import BOARD, DENSE, histories
from tuning_db import maintain
from tuning_db.record import FailureKind, Trial
from tuning_db.store import DatabaseError, Store, open_db

sharing = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)


def tiles(store: Store) -> list[int]:
    return [t.config["tile"] for t in store.trials()]


def test_merge_adds_what_is_missing_and_only_reads_the_source(store: Store, tmp_path: Path) -> None:
    source_path = tmp_path / "source.db"
    with open_db(source_path) as source:
        source.add_many([trial(1), trial(2, None), trial(3, device=BOARD)])
    before = source_path.read_bytes()
    store.add_many([trial(1), trial(9)])
    with open_db(source_path, read_only=True) as source:
        assert maintain.merge(store, source) == maintain.Merged(added=2, known=1)
        assert maintain.merge(store, source) == maintain.Merged(added=0, known=3)
    assert tiles(store) == [1, 9, 2, 3]
    assert source_path.read_bytes() == before


def test_prune_failures(store: Store) -> None:
    outdating = trial(1, None, minute=1, kind=FailureKind.WRONG_ANSWER)
    store.add_many([trial(1), trial(2, None), outdating, trial(3)])
    assert maintain.prune(store, failures=True) == maintain.Pruned(removed=1, kept=3)
    assert tiles(store) == [1, 1, 3]  # the wrong answer stays: without it the wrong kernel would be the best again
    assert maintain.prune(store, failures=True).removed == 0


def test_prune_by_age(store: Store) -> None:
    store.add_many([trial(tile, minute=-tile) for tile in range(6)])
    assert maintain.prune(store, older_than=NOON - timedelta(minutes=3)).removed == 2
    assert tiles(store) == [0, 1, 2, 3]


def test_prune_to_the_best_of_each_workload_and_device(store: Store) -> None:
    store.add_many(trial(tile, 1e-3 + tile * 1e-4) for tile in range(5))
    store.add_many(trial(tile, 1e-3 + tile * 1e-4, workload=DENSE) for tile in range(2))
    store.add_many(trial(tile, 1e-3, device=BOARD, minute=tile) for tile in range(5))
    store.add_many([trial(20, 1e-9, error=None), trial(21, 1e-9, error=1.0), trial(22, None)])
    assert maintain.prune(store, keep_best=3) == maintain.Pruned(removed=6, kept=9)
    assert [t.config["tile"] for t in store.trials(CONV, LAPTOP)] == [0, 1, 2, 22]
    assert [t.config["tile"] for t in store.trials(DENSE)] == [0, 1]
    assert [t.config["tile"] for t in store.trials(device=BOARD)] == [0, 1, 2]


def test_prune_keeps_what_the_dtype_allows(store: Store) -> None:
    half = replace(CONV, dtype="float16")
    for workload in (CONV, half):
        store.add_many([trial(1, 2e-3, workload=workload), trial(2, 1e-3, error=5e-4, workload=workload)])
    assert maintain.prune(store, keep_best=1).removed == 2
    assert [t.config["tile"] for t in store.trials(CONV)] == [1]
    assert [t.config["tile"] for t in store.trials(half)] == [2]


def test_a_dry_run_counts_the_same_and_removes_nothing(path: Path) -> None:
    with open_db(path) as store:
        store.add_many([trial(1), trial(2, 2e-3), trial(3, None), trial(4, minute=-99)])
    with open_db(path, read_only=True) as store:
        criteria = {"failures": True, "keep_best": 1, "older_than": NOON - timedelta(hours=1)}
        dry = maintain.prune(store, **criteria, dry_run=True)
        assert len(tiles(store)) == 4
    with open_db(path) as store:
        assert maintain.prune(store, **criteria) == dry == maintain.Pruned(removed=3, kept=1)
        assert tiles(store) == [1]


@pytest.mark.parametrize("criteria", [{}, {"keep_best": 0}])
def test_pruning_needs_a_criterion(store: Store, criteria: dict[str, int]) -> None:
    store.add(trial(1))
    with pytest.raises(ValueError, match=r"give failures|at least one"):
        maintain.prune(store, **criteria)  # type: ignore[arg-type]
    assert tiles(store) == [1]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "empty.db"
    open_db(path).close()
    return path


@sharing
@given(histories, st.booleans(), st.none() | st.integers(1, 3))
def test_pruning_never_changes_what_is_best(
    empty: Path, made: list[Trial], failures: bool, keep_best: int | None
) -> None:
    path = empty.with_name("pruned.db")
    shutil.copy(empty, path)
    with open_db(path) as store:
        store.add_many(made)
        before = store.best(CONV, LAPTOP)
        if failures or keep_best:
            pruned = maintain.prune(store, failures=failures, keep_best=keep_best)
            assert pruned.kept == store.stats().trials
        assert store.best(CONV, LAPTOP) == before


def test_compacting_makes_the_file_smaller(path: Path) -> None:
    with open_db(path) as store:
        store.add_many(trial(tile, minute=tile) for tile in range(3000))
    large = path.stat().st_size
    with open_db(path) as store:
        maintain.prune(store, keep_best=10)
        store.compact()
    assert path.stat().st_size < large / 5
    with open_db(path, read_only=True) as store:
        assert len(tiles(store)) == 10


def test_a_good_database_has_no_problems(store: Store) -> None:
    store.add_many([trial(1), trial(2, None), trial(3, error=float("inf")), trial(4, workload=DENSE, device=BOARD)])
    assert list(maintain.verify(store)) == []


DAMAGES = [
    ("UPDATE trials SET seconds = seconds * 2 WHERE id = 1", "trial 1: its column seconds"),
    ("UPDATE trials SET times = '[0.5]' WHERE id = 1", "trial 1: its column"),
    ("UPDATE trials SET times = '[' WHERE id = 1", "trial 1: it cannot be read"),
    ("UPDATE trials SET times = '[]' WHERE id = 1", "trial 1: it cannot be read"),
    ("UPDATE trials SET error = NULL WHERE id = 1", "trial 1: its column digest"),
    ("UPDATE trials SET config = replace(config, ',', ', ') WHERE id = 1", "trial 1: its column config"),
    ("UPDATE trials SET template = 'winograd' WHERE id = 1", "trial 1: its column template"),
    ("UPDATE trials SET config_digest = 1 WHERE id = 1", "trial 1: its column config_digest"),
    ("UPDATE trials SET created = created + 1 WHERE id = 2", "trial 2: its column digest"),
    ("UPDATE trials SET failure_kind = 'bored' WHERE id = 2", "trial 2: it cannot be read"),
    ("UPDATE trials SET workload_id = 99 WHERE id = 1", "trials 1 workloads"),
    ("UPDATE workloads SET key = replace(key, ':1,', ':1.0,')", "workload 1: its key is not canonical"),
    ("UPDATE workloads SET op = 'dense'", "workload 1: its column op"),
    ("UPDATE devices SET key = 'x'", "device 1: its key cannot be read"),
    ("UPDATE devices SET family = 'x'", "device 1: its column family"),
]


@pytest.mark.parametrize(("statement", "words"), DAMAGES, ids=[statement for statement, _ in DAMAGES])
def test_every_damage_to_a_record_is_found(path: Path, statement: str, words: str) -> None:
    with open_db(path) as store:
        store.add_many([trial(1), trial(2, None)])
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statement)
    with open_db(path, read_only=True) as store:
        problems = list(maintain.verify(store))
    assert any(words in problem for problem in problems), problems


def test_damaged_pages_are_found(path: Path) -> None:
    with open_db(path) as store:
        store.add_many(trial(tile) for tile in range(3000))
    content = bytearray(path.read_bytes())
    for at in range(len(content) // 2, len(content) // 2 + 40_000, 4096):
        content[at : at + 64] = b"\xaa" * 64
    path.write_bytes(content)
    with open_db(path, read_only=True) as store:
        assert list(maintain.verify(store))
    with open_db(path) as store, pytest.raises(DatabaseError, match=r"damaged|cannot be read"):
        list(store.trials())
