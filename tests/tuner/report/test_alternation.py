"""Contenders in processes of their own: they take turns, one that dies says why, none is left behind."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from tuner.report.alternation import SLOW_ROUNDS, Contender, ContenderFailed, Streams, alternate

# Its clock moves by its runs alone, so that a busy machine does not change how many runs a block has.
SERVE = """
import sys, time
from tuner.report.contender import isolate, serve
replies = isolate([{cpu}])
clock = [0.0]
time.perf_counter = lambda: clock[0]
def run():
    clock[0] += {seconds}
    return {seconds}
serve(run, "busy", replies)
"""


@pytest.fixture
def busy(tmp_path: Path):
    """Starts a contender that runs without end: each run takes `seconds` by its own clock."""
    started = []

    def start(name: str, seconds: float) -> Contender:
        cpu = min(psutil.Process().cpu_affinity())
        script = SERVE.format(cpu=cpu, seconds=seconds)
        started.append(Contender(name, [sys.executable, "-c", script], 1, tmp_path / f"{name}.log"))
        return started[-1]

    yield start
    for contender in started:
        contender.__exit__(None, None, None)


@pytest.fixture(autouse=True)
def _others():
    """Children of other tests (multiprocessing keeps one for itself) are not contenders."""
    _before.update(psutil.Process().children())
    yield
    _before.clear()


_before: set[psutil.Process] = set()


def _children() -> list[psutil.Process]:
    found = psutil.Process().children()
    return [p for p in found if p not in _before and p.status() != psutil.STATUS_ZOMBIE]


def _settled(status: str) -> bool:
    """Whether all children have this status; a signal takes a moment to arrive."""
    for _ in range(6000):
        if all(p.status() == status for p in _children()):
            return True
        time.sleep(0.005)
    return False


def test_contenders_are_stopped_while_they_are_not_asked(busy):
    running = {name: busy(name, 1 / 1024) for name in ("a", "b")}
    assert len(_children()) == 2
    assert _settled(psutil.STATUS_STOPPED)
    times = alternate(running, 3, 10.5 / 1024, lambda _: None)
    # A block ends with the run in which its time is over: the eleventh.
    assert times == {name: [[1 / 1024] * 11] * 3 for name in ("a", "b")}
    assert _settled(psutil.STATUS_STOPPED)


def test_a_slow_contender_is_asked_less_often(busy):
    running = {"slow": busy("slow", 0.05), "fast": busy("fast", 0.001)}
    times = alternate(running, SLOW_ROUNDS + 2, 0.01, lambda _: None)
    assert len(times["slow"]) == SLOW_ROUNDS
    assert len(times["fast"]) == SLOW_ROUNDS + 2


def test_every_contender_begins_a_round_in_turn_and_has_other_neighbours(busy):
    order: list[str] = []

    class Recorded:
        """Notes who is asked; the answer is the contender's own."""

        def __init__(self, name: str) -> None:
            self._name, self._contender = name, busy(name, 0.001)

        def block(self, seconds: float) -> list[float]:
            order.append(self._name)
            return self._contender.block(seconds)

    alternate({name: Recorded(name) for name in "abcd"}, 8, 0.05, lambda _: None)  # type: ignore[dict-item]
    rounds = ["".join(order[i : i + 4]) for i in range(0, 32, 4)]
    assert "".join(names[0] for names in rounds) == "abcdabcd"
    assert all(sorted(names) == list("abcd") for names in rounds)
    for name in "abcd":
        assert len({names.partition(name)[2][:1] for names in rounds}) > 2


def test_streams_all_begin_before_any_is_waited_for(busy):
    order: list[str] = []

    class Recorded:
        """Notes what is asked of a contender, which answers itself."""

        def __init__(self, name: str) -> None:
            self._name, self._contender, self.version = name, busy(name, 1 / 1024), "1"

        @property
        def peak_bytes(self) -> int:
            return self._contender.peak_bytes

        def begin(self, seconds: float) -> None:
            order.append(f"begin {self._name}")
            self._contender.begin(seconds)

        def end(self) -> list[float]:
            order.append(f"end {self._name}")
            return self._contender.end()

    streams = Streams([Recorded("a"), Recorded("b")])  # type: ignore[list-item]
    assert streams.block(10.5 / 1024) == [1 / 1024] * 22
    assert order == ["begin a", "begin b", "end a", "end b"]
    assert streams.peak_bytes > 20 << 20
    assert _settled(psutil.STATUS_STOPPED)


def test_one_that_cannot_start_says_why(tmp_path):
    with pytest.raises(ContenderFailed, match=r"broken failed: ValueError: out of paper"):
        Contender("broken", [sys.executable, "-c", "raise ValueError('out of paper')"], 1, tmp_path / "log")
    assert _children() == []


def test_one_that_dies_later_says_why(busy):
    contender = busy("victim", 0.001)
    (child,) = _children()
    child.kill()
    with pytest.raises(ContenderFailed, match="victim failed: exit status -9"):
        contender.block(0.01)


def test_none_is_left_behind(busy):
    with busy("a", 0.001):
        assert len(_children()) == 1
    assert _children() == []
