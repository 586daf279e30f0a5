"""Several users' runs on the same boards: they take turns, finish with all their trials, and measure nothing twice."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from board_agent.turn_queue import TurnQueue
from tests.board_agent.support import Agent, eventually
from tests.forks import FORKS
from tests.spare_server import Forked
from tests.tuner.cli.conftest import TUNE
from tests.tuner.measure.misbehaving import candidate
from tuner.devices import open_device
from tuner.devices.board import Boards, Link
from tuner.errors import TurnOver
from tuner.measure import BoardRunner, MeasureOptions
from tuning_db.store import open_db

CONV = ("conv2d", "--shape", "1,16,14,14,16,3,3", "--padding", "1", "--threads", "1")
TRIALS, FEW = 6, 3
TURN = 4.0  # of which a host needs one or two to prepare again: shorter ones are over before it measures
USERS = ("alice", "bob", "carol")
PLUGIN = "tests.tuner.measure.misbehaving"
SIMULATED = str(Path(__file__).parents[3] / "benchmarks" / "simulated_board.py")
SETTINGS = {"device": "cpu", "form": "library", "threads": 1, "memory_bytes": 1 << 30}


class User:
    """With a configuration and a database of their own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder / name
        self.boards = Boards(self.folder / "edgetune" / "boards")

    def start(self, trials: int = TRIALS) -> Forked:
        command = [str(TUNE), "op", *CONV, "--device", "board:pi", "--db", "t.db", "--trials", str(trials)]
        env = {**os.environ, "XDG_CONFIG_HOME": str(self.folder)}
        with open(self.folder / "run.log", "ab") as log:
            return FORKS.start(command, self.folder, env, log, log)

    @property
    def log(self) -> str:
        log = self.folder / "run.log"
        return log.read_text() if log.exists() else ""

    def has_measured_each_once(self, trials: int = TRIALS) -> None:
        with open_db(self.folder / "t.db") as store:
            assert (store.stats().in_flight, store.stats().failures) == (0, 0)
            keys = Counter(t.config.key for t in store.trials() if len(t.times) != 9)  # of a comparison at the end
        assert (len(keys), max(keys.values())) == (trials, 1)


def shared(agent: Agent, folder: Path, *more: str) -> list[User]:
    """Pair users with the agent and start it."""
    users = [User(name, folder) for name in USERS]
    with pytest.MonkeyPatch.context() as patch:
        for user in users:
            patch.setenv("LOGNAME", user.name)
            agent.introduce(user.boards, "pi")
    agent.start(*more)
    return users


@pytest.fixture
def pi(tmp_path: Path) -> Iterator[tuple[Agent, list[User]]]:
    """Give an agent on which a measurement takes a second, so that any run needs two turns at least."""
    agent = Agent(tmp_path, [SIMULATED, "1"])
    try:
        yield agent, shared(agent, tmp_path, "--turn", str(TURN))
    finally:
        agent.stop()


def turns(agent: Agent) -> list[str]:
    """Whose they were, in order."""
    return re.findall(r"^(\w+)-\S+'s turn begins", agent.log(), re.MULTILINE)


@contextlib.contextmanager
def held(agent: Agent) -> Iterator[None]:
    """Somebody measures on the board meanwhile, through another agent that shares its line, however long that takes."""
    with TurnQueue(agent.folder / "agent" / "line").enter("dave-laptop") as entry:
        entry.wait()
        eventually(lambda: entry.look().place == 0)
        yield


@pytest.mark.night
@pytest.mark.slow
def test_runs_of_two_users_take_turns(pi) -> None:
    agent, (alice, bob, _) = pi
    with held(agent):
        runs = [alice.start(), bob.start()]
        while not ("in line" in alice.log and "in line" in bob.log):
            assert runs[0].poll() is None, alice.log
            assert runs[1].poll() is None, bob.log
            time.sleep(0.2)
    assert [run.wait() for run in runs] == [0, 0], alice.log + bob.log
    alice.has_measured_each_once()
    bob.has_measured_each_once()
    seen = turns(agent)
    together = seen[: 1 + max(i for i, user in enumerate(seen[:-1]) if seen[i + 1] != user)]
    assert len(together) >= 3
    assert all(one != other for one, other in itertools.pairwise(together)), seen
    for user in (alice, bob):
        assert "waiting for board pi: 1st in line, " in user.log
        assert "board pi measures for this run now" in user.log


@pytest.mark.night
def test_three_users_and_one_who_is_killed_in_line(pi) -> None:
    agent, (alice, bob, carol) = pi
    with held(agent):
        runs = []
        for user, place in ((alice, "1st"), (bob, "2nd"), (carol, "3rd")):
            runs.append(user.start(TRIALS if user is alice else FEW))
            eventually(lambda user=user, place=place: f"{place} in line" in user.log)
        runs[1].send_signal(signal.SIGKILL)
        runs[1].wait()
        runs[1] = bob.start(FEW)
        eventually(lambda: "3rd in line" in bob.log)  # behind carol now
    assert [run.wait() for run in runs] == [0, 0, 0], alice.log + bob.log + carol.log
    assert turns(agent)[:3] == ["alice", "carol", "bob"]
    alice.has_measured_each_once()
    bob.has_measured_each_once(FEW)
    carol.has_measured_each_once(FEW)


def test_who_waits_can_be_interrupted(pi) -> None:
    _, (alice, bob, carol) = pi
    with Link(alice.boards["pi"]) as link:
        link.start(SETTINGS, 60.0)
        run = bob.start()
        eventually(lambda: "1st in line" in bob.log, 60)
        run.send_signal(signal.SIGINT)
        assert run.wait() == 130
        assert "Traceback" not in bob.log
        with Link(carol.boards["pi"]) as looks:
            assert looks.standing.waiting == 0


@pytest.mark.night
def test_a_measurement_that_is_longer_than_a_turn_is_not_cut(tmp_path: Path) -> None:
    """Nor does it keep a run from going on: a turn is good for one measurement at least."""
    agent = Agent(tmp_path, [SIMULATED, "2"])
    try:
        alice, bob, _ = shared(agent, tmp_path, "--turn", "1")
        with held(agent):
            runs = [alice.start(2), bob.start(2)]
            eventually(lambda: "in line" in alice.log and "in line" in bob.log)
        assert [run.wait() for run in runs] == [0, 0], alice.log + bob.log
        alice.has_measured_each_once(2)
        bob.has_measured_each_once(2)
        assert len(turns(agent)) >= 4
    finally:
        agent.stop()


@pytest.mark.sampled(2)
def test_a_run_goes_on_with_its_other_boards_while_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "alice"))
    agents = [Agent(tmp_path / name) for name in "ab"]
    notices: list[str] = []
    try:
        for name, agent in zip("ab", agents, strict=True):
            agent.folder.mkdir()
            agent.pair(Boards(), name, "--turn", "1")
        agents[0].stop()
        bobs = agents[0].pair(Boards(tmp_path / "bob"), "a", "--turn", "1")
        with BoardRunner(open_device("board:a+b", 1), MeasureOptions(plugins=(PLUGIN,)), notices.append) as fleet:
            assert all(t.ok for t in fleet.measure([candidate("good")] * 6))
            stay = threading.Event()
            bob = threading.Thread(target=hold, args=(bobs, stay))
            bob.start()
            while not any(text.startswith("waiting for board a: 1st in line") for text in notices):
                assert bob.is_alive(), notices
                assert all(t.ok for t in fleet.measure([candidate("good", 2)] * 6))
            assert all(t.ok for t in fleet.measure([candidate("good", 4)] * 6))
            stay.set()
            bob.join()
            while "board a measures for this run now" not in notices:
                assert all(t.ok for t in fleet.measure([candidate("good", 8)] * 6))
            assert fleet._client.losses == 0
    finally:
        for agent in agents:
            agent.stop()


def hold(board, stay: threading.Event) -> None:
    """Have a board for as long as it is let, and then once more."""
    while not stay.is_set():
        with Link(board) as link, contextlib.suppress(TurnOver):
            link.start(SETTINGS, 60.0, lambda _: None)
            while not stay.wait(0.2):
                link.ask({"do": "ready"})
