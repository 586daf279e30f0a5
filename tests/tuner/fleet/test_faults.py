"""A run on two boards that goes through faults of every kind: nothing committed is lost, nothing is counted twice, and
it ends by itself.

EDGETUNE_FAULTS: how many faults (default: 8; the figure to hold is 100, in a run of five trials for each).
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.board_agent.support import eventually
from tests.board_agent.test_access import can_be_used
from tests.tuner.cli.conftest import TUNE
from tests.tuner.fleet.network import PORT, Namespace, why_not
from tuner.devices.board import BoardGone, Boards, Link
from tuner.devices.board.link import SILENCE_SECONDS
from tuning_db.store import open_db

FAULTS = int(os.environ.get("EDGETUNE_FAULTS", "8"))
TRIALS = 5 * FAULTS
CONV = ("conv2d", "--shape", "1,64,14,14,64,3,3", "--padding", "1", "--threads", "1")


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Namespace]]:
    if (missing := why_not()) is not None:
        pytest.skip(missing)
    folder = Path(tmp_path_factory.mktemp("fleet"))
    made: list[Namespace] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        try:
            for number, name in enumerate(("north", "south")):
                made.append(Namespace(name, number, folder))
                made[-1].pair(Boards())
            yield made
        finally:
            for board in made:
                board.remove()


def test_a_cut_link_is_noticed_on_both_sides(boards: list[Namespace]) -> None:
    assert SILENCE_SECONDS < 10
    with Link(Boards()["north"]) as link:
        link.ask({"do": "condition"})
        boards[0].cut()
        try:
            with pytest.raises(BoardGone, match=f"silent for more than {SILENCE_SECONDS:g} s"):
                link.ask({"do": "condition"})
        finally:
            boards[0].mend()
    eventually(lambda: can_be_used(Boards()["north"]), 60)  # the board notices too, and is free again


class Run:
    """`tune op` on both boards, started again when it was killed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._process = folder, None
        self.start()

    def start(self) -> None:
        budget = ("--trials", str(TRIALS), "--preset", "exhaustive")  # which ends after 256 trials without gain
        command = [TUNE, "op", *CONV, "--device", "board:north+south", "--db", "t.db", *budget]
        with open(self.folder / "run.log", "a") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    @property
    def ended(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self.start()


def inflict(kind: str, board: Namespace, run: Run, rng: random.Random) -> None:
    if kind == "link":
        board.cut()
        time.sleep(rng.uniform(0.5, 12))
        board.mend()
    elif kind == "agent":
        board.kill_agent()
        time.sleep(rng.uniform(0, 3))
        board.start()
    elif kind == "bench":
        board.kill_bench()
    elif kind == "power":
        board.power_off()
        time.sleep(rng.uniform(1, 5))
        board.power_on()
    elif kind == "silent":
        with socket.create_connection((board.address, PORT), 5):
            time.sleep(rng.uniform(0, 3))
    elif kind == "disk":
        with board.full_disk():
            time.sleep(rng.uniform(1, 4))
    else:
        run.kill()


KINDS = ("link", "agent", "bench", "power", "silent", "disk", "host")


def goes_on(run: Run) -> bool:
    """Whether the run is over; one that found no board to begin with has said so, and is started again."""
    if run.ended in (None, 0):
        return run.ended is None
    last = (run.folder / "run.log").read_text().splitlines()[-1]
    assert run.ended in (1, 2), last
    assert last.startswith("tune: board north"), last
    run.start()
    return True


def test_faults(boards: list[Namespace], tmp_path: Path) -> None:
    rng, run, inflicted = random.Random(11), Run(tmp_path), Counter[str]()
    while inflicted.total() < FAULTS:
        time.sleep(rng.uniform(0.2, 2.0))
        if not goes_on(run):  # all trials are done: the rest falls on a run that has nothing left to do
            run.start()
        kind = KINDS[inflicted.total() % len(KINDS)]
        inflict(kind, rng.choice(boards), run, rng)
        inflicted[kind] += 1
    while goes_on(run):
        time.sleep(0.5)
    with open_db(str(tmp_path / "t.db")) as store:
        assert store.stats().in_flight == 0
        keys = Counter(
            trial.config.key
            for device in store.devices()
            for workload in store.workloads(device)
            for trial in store.trials(workload, device)
            if len(trial.times) != 9  # of a comparison at the end
        )
        assert store.stats().failures == 0, [t.failure for t in store.trials() if t.failure is not None]
    assert len(keys) >= min(TRIALS, 256)
    assert max(keys.values()) == 1
