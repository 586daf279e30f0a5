"""A run on two boards that goes through faults of every kind: nothing committed is lost, nothing is counted twice, each
fault is noticed within ten seconds, and it ends by itself.

The run of a change has four faults that tell most for what they cost; every kind comes at night (-m ''), where
EDGETUNE_FAULTS says how many faults there are (default: 10, each kind once; the figure to hold is 100) and
EDGETUNE_FAULTS_SEED which, in what order. Each waits for five more trials, and the run has far more to do, so that all
of them meet one that is under way; after the last it is killed once more, and the next has a little left to do.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from board_agent.wire import VERSION
from tests.board_agent.support import eventually
from tests.board_agent.test_access import can_be_used
from tests.forks import FORKS
from tests.tuner.cli.conftest import TUNE
from tests.tuner.fleet.network import CLOCKS, PORT, Namespace, why_not
from tuner.devices.board import BoardBusy, BoardGone, Boards, Link
from tuner.devices.board.link import SILENCE_SECONDS
from tuner.zoo.builder import GraphBuilder
from tuning_db.errors import DatabaseError
from tuning_db.store import open_db

FAULTS = int(os.environ.get("EDGETUNE_FAULTS", "10"))
SEED = int(os.environ.get("EDGETUNE_FAULTS_SEED", "11"))
TRIALS_PER_FAULT = 5
TRIALS_OF_A_FAULT = 160  # it takes up to twenty seconds: the run must last longer than all of them do
TRIALS_AFTER_FAULT = 4
NOTICED_SECONDS = 10.0
_GIVEN_UP_SECONDS = 60.0  # waiting for a notice that should have come long ago
_LAYERS = 20  # at most
_LOST = re.compile(r"^board (\w+) .*it is asked again until it answers$")


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


def write_network(path: Path, layers: int) -> None:
    """Convolutions that differ: a search gives up each after some hundreds of trials without a gain."""
    b = GraphBuilder("many", np.random.default_rng(0))
    x = b.input("data", (1, 16, 14, 14))
    for i in range(layers):
        x = b.conv_bn_relu(x, f"layer{i}", 16 + 8 * (i + 1), kernel=3 - 2 * (i % 2), padding=1 - i % 2)
    path.write_bytes(b.model(x).SerializeToString())


class Run:
    """`tune model` on both boards, started again when it was killed, at `started` for the last time. `said`: its lines,
    and when it said them."""

    def __init__(self, folder: Path, faults: int) -> None:
        self.folder, self.said, self.sessions, self._faults = folder, list[tuple[float, str]](), 0, faults
        self._trials = TRIALS_OF_A_FAULT * faults
        write_network(folder / "many.onnx", min(_LAYERS, 2 * faults))
        self.start()

    def start(self) -> None:
        budget = ("--trials", str(self._trials), "--preset", "exhaustive", "--searcher", "random", "--threads", "1")
        command = [str(TUNE), "model", "many.onnx", "--device", "board:north+south", "--db", "t.db", *budget]
        says, hears = os.pipe()
        with open(os.devnull, "wb") as nothing, open(hears, "wb") as err:
            self._process = FORKS.start(command, self.folder, os.environ, nothing, err)
        self.sessions, self.started = self.sessions + 1, time.monotonic()
        self._listening = threading.Thread(target=self._listen, args=(says,))
        self._listening.start()

    def _listen(self, says: int) -> None:
        with open(says) as stream, open(self.folder / "run.log", "a") as log:
            for line in stream:
                self.said.append((time.monotonic(), line.rstrip()))
                log.write(line)
                log.flush()

    @property
    def ended(self) -> int | None:
        status = self._process.poll()
        if status is not None:
            self._listening.join()
        return status

    def misses(self, board: str) -> bool:
        """Whether the board is away, by its last word."""
        words = [line for when, line in self.said if when >= self.started and line.startswith(f"board {board} ")]
        return bool(words) and _LOST.match(words[-1]) is not None

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._listening.join()
        self.start()

    def finish(self) -> None:
        """Kill it, and start one that ends soon."""
        self._trials = sum(self.committed().values()) + TRIALS_AFTER_FAULT * min(self._faults, 10)
        self.kill()

    def committed(self) -> Counter[tuple[str, str]]:
        """How often each config of each workload was measured; comparisons at the end do not count."""
        try:
            with open_db(self.folder / "t.db", create=False, read_only=True) as store:
                return Counter((t.workload.key, t.config.key) for t in store.trials() if len(t.times) != 9)
        except DatabaseError:
            assert not self.said or "trials" not in self.said[-1][1]  # it is not there yet
            return Counter()


@dataclass
class Fault:
    """`served`: the run was measuring on the board just before; `seconds`: how long it lasted; `until`: of the next one
    of that board."""

    kind: str
    board: str
    when: float
    served: bool
    seconds: float = 0.0
    until: float = float("inf")

    def notice(self, run: Run) -> float | None:
        """Seconds until the run said that the board is away."""
        lines = [(when, _LOST.match(line)) for when, line in run.said if self.when <= when < self.until]
        return next((when - self.when for when, found in lines if found and found[1] == self.board), None)

    @property
    def must_be_noticed(self) -> bool:
        return self.served and (self.kind in _NOTICED or (self.kind == "link" and self.seconds >= NOTICED_SECONDS))


def serves(board: Namespace, run: Run) -> bool:
    """Whether the run measures on it now, by the board's own word. For a while that may still mean the run that was
    killed, if one was, and where the run has just said that the board is away, it says the same no second time."""
    may_be_of_another = run.sessions > 1 and time.monotonic() - run.started < NOTICED_SECONDS
    if may_be_of_another or run.misses(board.name):
        return False
    try:
        with Link(Boards()[board.name]) as link:
            return bool(link.standing.measures)
    except (BoardBusy, BoardGone):
        return False


def slowest_notice(run: Run, faults: list[Fault]) -> dict[str, float]:
    """Seconds from a fault of a board to the line that says that it is away, the longest of each kind. A board that was
    away before is asked again after ever longer pauses."""
    slowest: dict[str, float] = {}
    for fault in faults:
        if fault.served and fault.kind not in ("host", "silent") and (after := fault.notice(run)) is not None:
            slowest[fault.kind] = max(slowest.get(fault.kind, 0.0), after)
    return slowest


def says(run: Run, text: str, since: float) -> bool:
    return any(text in line for when, line in run.said if when >= since)


def inflict(kind: str, board: Namespace, run: Run, rng: random.Random) -> None:
    began = time.monotonic()
    if kind == "link":
        board.cut()
        time.sleep(rng.uniform(0.5, 14))
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
    elif kind == "clock":
        board.set_clock(rng.choice(["+10y", "-20y", "+40d", "-1h", "+0"]))
    elif kind == "upgrade":
        board.upgrade()
    elif kind == "foreign":
        board.upgrade(VERSION + 1)
        eventually(lambda: run.ended is not None or says(run, _FOREIGN, began))
        board.downgrade()
    else:
        run.kill()


_NOTICED = ("agent", "power", "upgrade", "foreign")  # whatever was under way
_FOREIGN = "its agent is of another version than this edgetune: update both: it is asked again until it answers"
KINDS = (
    "link",
    "agent",
    "bench",
    "power",
    "silent",
    "disk",
    "host",
    "upgrade",
    "foreign",
    *(["clock"] if CLOCKS else []),
)


# One that is noticed at once and one that is only known by silence; what blames a candidate, and what the board lacks.
TELLING = ("agent", "bench", "disk", "power")


def kinds(rng: random.Random) -> list[str]:
    """At random; each at least once where there are so many."""
    return [*rng.sample(KINDS, len(KINDS)), *rng.choices(KINDS, k=FAULTS)][:FAULTS]


def add_fault(faults: list[Fault], kind: str, board: Namespace, run: Run, rng: random.Random) -> None:
    """Inflict it, and wait for its notice where there has to be one: the next fault may be the same board's."""
    fault = Fault(kind, board.name, time.monotonic(), serves(board, run))
    for earlier in faults:
        if earlier.board == board.name:
            earlier.until = min(earlier.until, fault.when)
    faults.append(fault)
    inflict(kind, board, run, rng)
    fault.seconds = time.monotonic() - fault.when
    while fault.must_be_noticed and fault.notice(run) is None and time.monotonic() < fault.when + _GIVEN_UP_SECONDS:
        assert run.ended is None, "the run ended before its faults did"
        time.sleep(0.1)


def goes_on(run: Run) -> bool:
    """Whether the run is over; one that found no board to begin with has said so, and is started again."""
    if run.ended in (None, 0):
        return run.ended is None
    last = run.said[-1][1]
    assert run.ended in (1, 2), last
    assert last.startswith("tune: board north"), [line for _, line in run.said[-20:]]
    run.start()
    return True


def go_through(planned: Sequence[str], boards: list[Namespace], run: Run) -> list[Fault]:
    """Let the run meet all faults, and finish it; what happened. Checks that what was committed once stays.

    Few faults strike boards that measure for the run, so that each of them tells something; many strike whenever.
    """
    rng, faults, seen = random.Random(SEED), list[Fault](), Counter[tuple[str, str]]()
    while len(faults) < len(planned):
        time.sleep(rng.uniform(0.2, 2.0))
        assert goes_on(run), "the run ended before its faults did"
        now = run.committed()
        assert seen <= now, "what was committed is lost"
        seen = now
        if len(now) < TRIALS_PER_FAULT * len(faults):
            continue
        board = rng.choice(boards)
        Boards().forgive(board.name)  # or it would soon be in quarantine, and its faults would meet nothing
        if planned is TELLING:
            eventually(lambda board=board: run.ended is not None or serves(board, run))
        add_fault(faults, planned[len(faults)], board, run, rng)
    run.finish()
    while goes_on(run):
        time.sleep(0.5)
    assert seen <= run.committed()
    return faults


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "planned",
    [
        pytest.param(TELLING, id="telling"),
        pytest.param(kinds(random.Random(SEED)), id="every-kind", marks=pytest.mark.night),
    ],
)
def test_faults(boards: list[Namespace], tmp_path: Path, planned: Sequence[str]) -> None:
    began, run = time.monotonic(), Run(tmp_path, len(planned))
    faults = go_through(planned, boards, run)
    final, slowest = run.committed(), slowest_notice(run, faults)
    must = [fault for fault in faults if fault.must_be_noticed]
    jumps = [fault for fault in faults if fault.kind == "clock" and fault.served]
    with open_db(str(tmp_path / "t.db")) as store:
        stats = store.stats()
        failures = [t.failure for t in store.trials() if t.failure is not None]
    notices = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in sorted(slowest.items()))
    print(
        f"{len(faults)} faults, {run.sessions} sessions, {len(final)} configs, {stats.trials} trials, "
        f"{max(final.values()) - 1} duplicates, {stats.failures} failures, journal {stats.in_flight}, "
        f"{time.monotonic() - began:.0f} s; {len(must)} had to be noticed, slowest: {notices}; clocks that jumped: "
        f"{len(jumps) if CLOCKS else 'none, libfaketime is missing'}"
    )
    assert not [fault for fault in must if fault.notice(run) is None]
    assert not [fault for fault in jumps if fault.notice(run) is not None]
    assert stats.in_flight == 0
    assert not failures, failures
    assert len(final) >= TRIALS_PER_FAULT * len(planned)
    assert max(final.values()) == 1
    assert max(slowest.values(), default=0.0) < NOTICED_SECONDS, notices
