"""What is asked of runs: of all, or of those that are under way when it is asked."""

from __future__ import annotations

import sqlalchemy

from tests.tuning_db.made import CONV, LAPTOP, trial
from tuning_db import schema
from tuning_db.record import DeviceKey, Workload
from tuning_db.run_control import RunControl, is_paused, pause, resume, skip
from tuning_db.store import Store, open_db

OTHER = DeviceKey("cpu", "x86_64-avx2", "haswell", {"threads": 1})


def test_a_pause_holds_for_every_run_until_it_ends(store: Store) -> None:
    before = RunControl(store, LAPTOP)
    assert not before.made().paused
    pause(store)
    pause(store)
    assert is_paused(store)
    assert before.made().paused
    assert RunControl(store, OTHER).made().paused
    resume(store)
    resume(store)
    assert not is_paused(store)
    assert not before.made().paused


def test_a_task_is_skipped_by_runs_that_were_under_way_on_its_device(store: Store) -> None:
    began, elsewhere = RunControl(store, LAPTOP), RunControl(store, OTHER)
    skip(store, CONV, LAPTOP)
    later = RunControl(store, LAPTOP)
    assert began.made().skipped == {CONV.key}
    assert elsewhere.made().skipped == frozenset()
    with store.writing() as connection:  # as if the second run had begun a second later
        connection.execute(sqlalchemy.update(schema.wishes).values(created=schema.wishes.c.created - 1_000_000))
    assert later.made().skipped == frozenset()


def test_what_is_asked_again_is_asked_of_runs_that_came_since(store: Store) -> None:
    skip(store, CONV, LAPTOP)
    with store.writing() as connection:
        connection.execute(sqlalchemy.update(schema.wishes).values(created=0))
    run = RunControl(store, LAPTOP)
    assert run.made().skipped == frozenset()
    skip(store, CONV, LAPTOP)
    skip(store, Workload("dense", {"rows": 1}), LAPTOP)
    assert len(run.made().skipped) == 2
    with store.reading() as connection:
        assert connection.scalar(sqlalchemy.select(sqlalchemy.func.count()).select_from(schema.wishes)) == 2


def test_wishes_are_no_trials(path) -> None:
    with open_db(path) as store:
        store.add(trial(1))
        skip(store, CONV, LAPTOP)
        pause(store)
        assert store.stats().trials == 1
