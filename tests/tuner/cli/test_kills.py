"""kill -9 of the real command and its children at random moments: nothing is lost, and the next run goes on."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.tuner.cli.conftest import TUNE
from tuning_db.logs import line_of
from tuning_db.maintain import verify
from tuning_db.store import open_db

LONGEST_SECONDS = 2.5  # after the first trial


def _trials(database: Path) -> set[str]:
    """Every committed trial; the database is checked on the way."""
    with open_db(database) as store:
        assert list(verify(store)) == []
        return {line_of(trial) for trial in store.trials()}


def _wait_for_first_trial(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if "in this session" in line:
            return


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.night)])
def test_kills_lose_nothing(tune, tiny, kills):
    rng = random.Random(11)
    database = tiny.with_name("t.db")
    words = ("model", tiny.name, "--device", "cpu", "--threads", 1, "--db", "t.db")
    known: set[str] = set()
    for number in range(kills):
        command = [TUNE, *map(str, words), "--preset", "exhaustive", "--searcher", "random"]
        with subprocess.Popen(
            command, cwd=tiny.parent, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            if number % 4:  # every fourth is killed while it starts
                _wait_for_first_trial(process)
            time.sleep(rng.uniform(0, LONGEST_SECONDS))
            children = psutil.Process(process.pid).children(recursive=True)
            if number % 2 and children:
                rng.choice(children).kill()
                time.sleep(rng.uniform(0, 1))
            process.kill()
            process.wait()
            _, alive = psutil.wait_procs(children, timeout=30)
            assert not alive, "children outlive the tuner"
        if database.exists():
            now = _trials(database)
            assert known <= now
            known = now
    assert known
    after = tune(*words, "--trials", len(known) + 8, "--json")
    assert after.status == 0, after.err
    assert after.json()["new_trials"] > 0
    assert known < _trials(database)
