"""Two boards that measure candidates of a stream: asked for as there is room, each measured once, and nothing left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.board_agent.support import Agent
from tests.tuner.measure.misbehaving import candidate
from tuner.devices import open_device
from tuner.devices.board import Boards
from tuner.errors import BadInput
from tuner.measure import BoardRunner, Candidate, MeasureOptions

PLUGIN = "tests.tuner.measure.misbehaving"
TILES = (1, 2, 4, 8)
MOST = 2 + 2 * 4  # two that are measured, and what is built, or being built, beside them


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoardRunner]:
    folder, agents = tmp_path_factory.mktemp("boards"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        try:
            for name in "ab":
                (folder / name).mkdir()
                agents.append(Agent(folder / name))
                agents[-1].pair(Boards(), name)
            with BoardRunner(open_device("board:a+b", 1), MeasureOptions(plugins=(PLUGIN,))) as made:
                yield made
        finally:
            for agent in agents:
                agent.stop()


class Stream:
    """Good candidates; `asked`: how many of them were asked for."""

    def __init__(self, count: int) -> None:
        self.asked, self._count = 0, count

    def __iter__(self) -> Iterator[Candidate]:
        for number in range(self._count):
            self.asked += 1
            yield candidate("good", TILES[number % len(TILES)])


def libraries(runner: BoardRunner) -> list[Path]:
    return [path for path in runner._builder.folder.glob("k*.so") if path.name != "k1.so"]  # that is the reference


@pytest.mark.sampled(2)
def test_candidates_are_asked_for_as_there_is_room(runner: BoardRunner) -> None:
    assert runner.width == 2
    stream, done, ahead = Stream(40), 0, []
    for trial in runner.measure(stream):
        done += 1
        assert trial.ok
        ahead.append(stream.asked - done)
    assert done == stream.asked == 40
    assert max(ahead) < MOST
    assert min(ahead[:20]) >= 2, "a board had nothing to do"
    assert libraries(runner) == []


def test_a_stream_that_is_left_is_ended(runner: BoardRunner) -> None:
    stream = Stream(1000)
    trials = runner.measure(stream)
    assert next(trials).ok
    trials.close()
    assert stream.asked <= MOST
    assert libraries(runner) == []
    assert [t.ok for t in runner.measure([candidate("good")] * 3)] == [True] * 3


def test_each_bad_candidate_costs_its_own_trial(runner: BoardRunner) -> None:
    does = ["good", "build_raise", "run_abort", "good", "good", "good"] * 2
    trials = list(runner.measure(candidate(name) for name in does))
    assert sorted(t.ok for t in trials) == sorted(name == "good" for name in does)


def test_what_asking_raises_ends_it(runner: BoardRunner) -> None:
    def asked() -> Iterator[Candidate]:
        yield from Stream(12)
        raise BadInput("there are no more")

    with pytest.raises(BadInput, match="there are no more"):
        list(runner.measure(asked()))
    assert libraries(runner) == []
