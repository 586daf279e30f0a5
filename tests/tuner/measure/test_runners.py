"""The contract that every Runner keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.board_agent.support import NAME, paired_agent
from tests.tuner.measure.misbehaving import WORKLOAD, candidate
from tuner.devices import open_device
from tuner.devices.board import Boards
from tuner.measure import BoardRunner, LocalRunner, MeasureOptions, Runner
from tuner.measure.replay.runner import ReplayRunner, recorded
from tuning_db.record import Config, Failure, FailureKind, Trial

# Copies of a weight exceed a cache, on servers even what a candidate may allocate; it is not its fault.
OPTIONS = MeasureOptions(plugins=("tests.tuner.measure.misbehaving",), cold_bytes=576 << 20, memory_bytes=512 << 20)


def local() -> Runner:
    return LocalRunner(open_device("cpu", 1), OPTIONS)


def replay() -> Runner:
    """Of a recording of one good and one failing config."""
    device = open_device("cpu", 1).key
    good = [Trial(WORKLOAD, device, candidate("good", tile).config, 3, times=(1e-6 * tile,)) for tile in (1, 2, 4, 8)]
    bad = Trial(
        WORKLOAD, device, candidate("build_raise").config, 3, failure=Failure(FailureKind.COMPILE, "ValueError")
    )
    return ReplayRunner(device, recorded([*good, bad]), {"test.misbehaving": 3})


@contextmanager
def board() -> Iterator[Runner]:
    """On an agent of this machine, over its real protocol."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", folder)
        with paired_agent(Path(folder), Boards()), BoardRunner(open_device(f"board:{NAME}", 1), OPTIONS) as runner:
            yield runner


RUNNERS: dict[str, Callable[[], AbstractContextManager[Runner]]] = {"local": local, "replay": replay, "board": board}


@pytest.fixture(scope="module", params=RUNNERS)
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    with RUNNERS[request.param]() as made:
        yield made


def test_one_trial_per_candidate_in_order(runner):
    candidates = [candidate("good", tile) for tile in (4, 1, 8, 2)]
    trials = list(runner.measure(candidates))
    assert [t.config for t in trials] == [c.config for c in candidates]
    for trial in trials:
        assert trial.ok
        assert 0 < trial.seconds < 1
        assert trial.workload == WORKLOAD
        assert trial.device == runner.device.key if hasattr(runner, "device") else open_device("cpu", 1).key
        assert trial.template_version == 3


def test_nothing_in_nothing_out(runner):
    assert list(runner.measure([])) == []
    assert runner.compare([]) == []


def test_a_failure_is_a_value_and_costs_only_its_own_trial(runner):
    trials = list(runner.measure([candidate("good"), candidate("build_raise"), candidate("good", 2)]))
    assert [t.ok for t in trials] == [True, False, True]
    assert trials[1].failure.kind is FailureKind.COMPILE
    assert trials[1].seconds == float("inf")


def test_a_config_that_is_in_no_space_is_invalid(runner):
    strange = candidate("good", 3)
    (trial,) = runner.measure([strange])
    assert trial.failure.kind is FailureKind.INVALID


def test_an_unknown_template_is_invalid(runner):
    unknown = type(candidate("good"))(WORKLOAD, Config("no.such.template", {}))
    (trial,) = runner.measure([unknown])
    assert trial.failure.kind is FailureKind.INVALID


def test_the_iterator_may_be_left_early(runner):
    trials = runner.measure([candidate("good", tile) for tile in (1, 2, 4)])
    assert next(trials).ok
    trials.close()
    assert [t.ok for t in runner.measure([candidate("good")])] == [True]


def test_compare_gives_one_trial_per_candidate_in_order(runner):
    candidates = [candidate("good", 2), candidate("build_raise"), candidate("good", 8)]
    trials = runner.compare(candidates)
    assert [t.config for t in trials] == [c.config for c in candidates]
    assert [t.ok for t in trials] == [True, False, True]


def test_a_best_time_does_not_change_what_is_measured(runner):
    trials = list(runner.measure([candidate("good"), candidate("good", 2)], best_seconds=1e-9))
    assert all(t.ok for t in trials)


@pytest.mark.parametrize("make", RUNNERS.values(), ids=RUNNERS)
def test_close_may_be_called_twice(make):
    with make() as runner:
        runner.close()
        runner.close()
