"""What a session writes down before it measures, and what the next one makes of it when it died meanwhile."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import update

from templates.template import search_space
from tests.tuner.session.support import CONV, POINT, VERSIONS, latency, records, replayed
from tuner.devices import Device
from tuner.measure.replay.runner import ReplayRunner, computed
from tuner.measure.runner import Candidate
from tuner.session import Budget, TuneOptions, tune
from tuner.session.journal import is_gone
from tuner.session.remeasure import remeasure
from tuning_db import schema
from tuning_db.record import Config, FailureKind, Trial
from tuning_db.store import AGAIN, Store


def dies(store: Store) -> None:
    """What is in the journal is a dead session's from now on."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    with store.writing() as connection:
        for entry in store.in_flight():
            again = AGAIN if entry.owner.endswith(AGAIN) else ""
            owner = f"{platform.node()}:{ended.pid}{again}"
            ours = schema.in_flight.c.config == entry.config.key
            connection.execute(update(schema.in_flight).where(ours).values(owner=owner))


class Killer(ReplayRunner):
    """The session dies when it comes to measure a certain config: it measures all that came before. `batches`: what it
    was given at a time."""

    def __init__(self, device: Device, bad: Config) -> None:
        super().__init__(device.key, computed(latency), VERSIONS)
        self.bad, self.batches = bad, list[list[Config]]()

    def measure(self, candidates: Iterable[Candidate], best_seconds: float | None = None):
        batch = list(candidates)
        self.batches.append([c.config for c in batch])
        for candidate in batch:
            if candidate.config == self.bad:
                os._exit(9)  # as a machine that starts again: no `finally` runs
            yield from super().measure([candidate], best_seconds)


def session_that_may_die(device: Device, store: Store, runner: ReplayRunner) -> bool:
    """In a process of its own; whether it did."""
    child = os.fork()
    if child == 0:
        from tuning_db.store import open_db

        with open_db(store.name) as own:
            tune([CONV], device, own, runner, TuneOptions("genetic", Budget(trials=24), clock=runner.clock))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_candidate_that_takes_the_machine_down_twice_has_failed(device: Device, store: Store) -> None:
    space = search_space(CONV.workload, device.target)
    assert space is not None
    bad = space.seed_configs()[2]
    killer = Killer(device, bad)
    assert session_that_may_die(device, store, killer)
    left = [e.config for e in store.in_flight()]
    assert bad in left
    assert len(left) > 1, "others of its batch were not measured either"
    assert session_that_may_die(device, store, killer)
    assert [(e.config, e.owner.endswith(AGAIN)) for e in store.in_flight()] == [(bad, True)]
    assert not session_that_may_die(device, store, killer)
    (failed,) = [t for t in records(store) if t.config == bad]
    assert failed.failure is not None
    assert (failed.failure.kind, "died, twice" in failed.failure.message) == (FailureKind.DEVICE_LOST, True)
    measured = {t.config for t in records(store)}
    assert set(left) <= measured, "what it had no part in was measured"
    assert store.in_flight() == []


def test_a_session_that_died_of_something_else_costs_its_candidate_nothing(device: Device, store: Store) -> None:
    space = search_space(CONV.workload, device.target)
    assert space is not None
    configs = space.seed_configs()[:4]
    store.begin(CONV.workload, device.key, configs)
    dies(store)
    killer = Killer(device, Config("none", {}))
    tune([CONV, POINT], device, store, killer, TuneOptions(budget=Budget(trials=40), clock=killer.clock))
    alone = [batch for batch in killer.batches if configs[0] in batch]
    assert alone == [[configs[0]]]
    assert records(store)[[t.config for t in records(store)].index(configs[0])].searcher is not None
    assert all(t.failure is None or t.failure.kind is not FailureKind.DEVICE_LOST for t in records(store))
    assert store.in_flight() == []


def test_over_a_board_a_session_dies_of_something_else(device: Device, store: Store) -> None:
    space = search_space(CONV.workload, device.target)
    assert space is not None
    first = space.seed_configs()[0]
    store.begin(CONV.workload, device.key, [first], again=True)
    dies(store)
    board = replace(device, name="board:pi")
    replayed(board, store, [CONV], Budget(trials=24))
    assert [t.ok or t.failure.kind is not FailureKind.DEVICE_LOST for t in records(store) if t.config == first] == [
        True
    ]


class Watched(ReplayRunner):
    """`journal`: what was in it during each comparison."""

    def __init__(self, device: Device, store: Store) -> None:
        super().__init__(device.key, computed(latency), VERSIONS)
        self._store, self.journal = store, list[tuple[set[str], set[str]]]()

    def compare(self, candidates: Sequence[Candidate]) -> list[Trial]:
        self.journal.append(({c.config.key for c in candidates}, {e.config.key for e in self._store.in_flight()}))
        return super().compare(candidates)

    def measure(self, candidates: Iterable[Candidate], best_seconds: float | None = None):
        batch = list(candidates)
        self.journal.append(({c.config.key for c in batch}, {e.config.key for e in self._store.in_flight()}))
        yield from super().measure(batch, best_seconds)


def test_whatever_is_measured_is_in_the_journal_before(device: Device, store: Store) -> None:
    runner = Watched(device, store)
    tune([CONV], device, store, runner, TuneOptions(budget=Budget(trials=24), clock=runner.clock))
    assert any(len(asked) > 1 for asked, _ in runner.journal)
    searched = len(runner.journal)
    (best,) = [store.best(CONV.workload, device.key)]
    assert best is not None
    assert len(list(remeasure([best], store, runner))) == 1
    assert len(runner.journal) == searched + 1
    assert all(asked == written for asked, written in runner.journal)
    assert store.in_flight() == []


def test_a_number_that_another_process_has_now_is_a_dead_ones() -> None:
    here = f"{platform.node()}:{os.getppid()}"
    assert not is_gone(here)
    assert not is_gone(here, datetime.now(UTC))
    assert is_gone(here, datetime.now(UTC) - timedelta(days=3650))
    assert not is_gone("elsewhere:1", datetime.now(UTC) - timedelta(days=3650))
