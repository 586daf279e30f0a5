"""Runs of the real command that tune one network in one database at the same time share its tasks, and outlive each
other."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

import psutil
import pytest

from tests.forks import FORKS
from tests.tuner.cli.conftest import TUNE
from tests.tuning_db.backends import BACKENDS, new_database
from tuner.session.session_budget import BATCH
from tuning_db.store import Store, open_db

TRIALS = 56  # enough for the first seeds of every task
COMMON = ("--threads", "1", "--json", "--searcher", "random")
NETWORK = ("model", "tiny.onnx", "--trials", str(TRIALS))
LAYER = ("op", "dense", "--shape", "4,64,32", "--trials", "24")


class Running:
    """`tune` under way; what it says goes to files."""

    def __init__(self, folder: Path, out: BinaryIO, err: BinaryIO, words: Sequence[str]) -> None:
        self.command = FORKS.start([str(TUNE), *words], folder, os.environ, out, err)
        self._out, self._err = out, err

    def communicate(self) -> tuple[str, str]:
        """Return what it said, when it has ended."""
        self.command.wait()
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read().decode())
        return texts[0], texts[1]


@contextmanager
def running(folder: Path, url: str, *words: str) -> Iterator[Running]:
    with TemporaryFile() as out, TemporaryFile() as err:
        run = Running(folder, out, err, [*words, *COMMON, "--db", url])
        try:
            yield run
        finally:
            if run.command.poll() is None:
                children = psutil.Process(run.command.pid).children(recursive=True)
                run.command.kill()
                psutil.wait_procs(children)
            run.command.wait()


def wait_for_claim(url: str) -> None:
    """Until a run is at a task."""
    while True:
        with open_db(url) as store:
            if store.in_flight():
                return
        time.sleep(0.05)


def configs_tried(store: Store) -> Counter[str]:
    return Counter({w.key: len({t.config.key for t in store.trials(w)}) for w in store.workloads()})


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_runs_share_the_tasks_and_the_budget_and_no_task_is_tuned_by_both_at_once(tiny: Path, backend: str) -> None:
    url = new_database(backend, tiny.with_name("t.db"))
    open_db(url).close()
    owners, both = set[str](), 0
    with (
        open_db(url, read_only=True) as store,
        running(tiny.parent, url, *NETWORK, "--seed", "1") as one,
        running(tiny.parent, url, *NETWORK, "--seed", "2") as two,
    ):
        while one.command.poll() is None or two.command.poll() is None:
            at = defaultdict[str, set[str]](set)
            for entry in store.in_flight():
                at[entry.workload.key].add(entry.owner)
            assert all(len(found) == 1 for found in at.values())
            now = set().union(*at.values())
            owners |= now
            both += len(now) == 2
            time.sleep(0.05)
        said = [run.communicate() for run in (one, two)]
        assert [run.command.wait() for run in (one, two)] == [0, 0], said
        reports = [json.loads(text) for text, _ in said]
        tried = configs_tried(store)
        assert {t.seed for t in store.trials()} == {1, 2}
    assert len(owners) == 2
    assert both > 2  # they did work at the same time
    assert TRIALS <= tried.total() <= TRIALS + 2 * BATCH  # what the other is measuring is not known yet
    assert [report["stopped"] for report in reports] == ["trials", "trials"]
    assert sum(report["new_trials"] for report in reports) == tried.total()
    for report in reports:
        assert report["new_trials"] > 0
        assert report["unmeasured"] == []  # the other's results are its own
        assert report["trials"] >= TRIALS
        assert "more trials are other runs'" in " ".join(report["remarks"])


def test_the_task_of_a_killed_run_is_taken_over_at_once(tmp_path: Path) -> None:
    url = new_database("sqlite", tmp_path / "t.db")
    open_db(url).close()
    with running(tmp_path, url, *LAYER, "--lease", "100000") as one:
        wait_for_claim(url)
        one.command.kill()
        with running(tmp_path, url, *LAYER) as two:
            report = json.loads(two.communicate()[0])
    assert report["stopped"] == "trials"
    assert report["unmeasured"] == []
    with open_db(url) as store:
        assert store.in_flight() == []


@pytest.mark.night
def test_the_task_of_a_run_that_is_silent_is_taken_over_when_its_lease_is_over(tmp_path: Path) -> None:
    url = new_database("sqlite", tmp_path / "t.db")
    open_db(url).close()
    with running(tmp_path, url, *LAYER, "--lease", "2", "--seed", "1") as one:
        wait_for_claim(url)
        one.command.send_signal(signal.SIGSTOP)
        with running(tmp_path, url, *LAYER, "--seed", "2") as two:
            report = json.loads(two.communicate()[0])
        assert report["stopped"] == "trials"
        assert report["new_trials"] >= 24 - BATCH
        one.command.send_signal(signal.SIGCONT)
        late = json.loads(one.communicate()[0])
    assert late["new_trials"] <= BATCH  # what it was at; it goes on from what the other has found
    assert late["trials"] >= 24
