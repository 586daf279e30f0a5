"""LocalRunner on every OpenCL driver that is here: real kernels, some of which go wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from templates.template import search_space
from templates.workloads import Conv2d
from tests.tuner.measure.misbehaving_gpu import candidate
from tuner.devices import Device, list_devices
from tuner.measure import Candidate, LocalRunner, MeasureOptions
from tuning_db.record import FailureKind

DEVICES = [device for device in list_devices() if not device.is_host]
OPTIONS = MeasureOptions(run_seconds=5, builders=1, plugins=("tests.tuner.measure.misbehaving_gpu",))
EXPECTED = {
    "wrong": (FailureKind.WRONG_ANSWER, "relative error"),
    "bad_source": (FailureKind.COMPILE, "no_such_function_of_any_driver"),
    "endless": (FailureKind.RUN_TIMEOUT, "run deadline of 5 s"),
    "unbound": (FailureKind.COMPILE, "no kernel for the device"),
}

pytestmark = [
    pytest.mark.skipif(not DEVICES, reason="no OpenCL driver or CUDA device is here"),
    pytest.mark.sampled(2),  # each runs on several devices
]


@pytest.fixture(scope="module", params=DEVICES, ids=lambda d: d.name)
def device(request: pytest.FixtureRequest) -> Device:
    return request.param


@pytest.fixture(scope="module")
def runner(device: Device) -> Iterator[LocalRunner]:
    with LocalRunner(device, OPTIONS) as opened:
        yield opened


@pytest.mark.night
def test_each_failure_is_its_own_candidates(runner: LocalRunner, device: Device) -> None:
    ways = ["right", "wrong", "right", "bad_source", "endless", "right", "unbound", "right"]
    trials = list(runner.measure([candidate(does, turn) for turn, does in enumerate(ways)]))
    for does, trial in zip(ways, trials, strict=True):
        assert trial.device == device.key
        if does == "right":
            assert trial.failure is None
            assert trial.error is not None
            assert trial.error < 1e-6
            assert 0 < trial.seconds < 1
        else:
            kind, says = EXPECTED[does]
            assert trial.failure is not None
            assert (trial.failure.kind, says in trial.failure.message) == (kind, True), trial.failure


def test_candidates_are_compared_in_turns(runner: LocalRunner) -> None:
    trials = runner.compare([candidate("right", 0), candidate("wrong", 1), candidate("right", 2)])
    assert [trial.ok for trial in trials] == [True, False, True]
    assert len(trials[0].times) == len(trials[2].times) == OPTIONS.compare_rounds


def test_a_convolution_is_measured(runner: LocalRunner, device: Device) -> None:
    workload = Conv2d(1, 16, 10, 10, 16, (3, 3), padding=(1, 1, 1, 1)).workload(("bias", "relu"))
    space = search_space(workload, device.target)
    assert space is not None
    (trial,) = runner.measure([Candidate(workload, space.seed_configs()[0])])
    assert trial.ok, trial.failure


def test_half_precision_may_round_its_results(runner: LocalRunner, device: Device) -> None:
    workload = Conv2d(1, 16, 10, 10, 16, (3, 3), padding=(1, 1, 1, 1)).workload(("bias", "relu"), "float16")
    space = search_space(workload, device.target)
    if space is None:
        pytest.skip(f"{device.key.model} has no half precision")
    (trial,) = runner.measure([Candidate(workload, space.seed_configs()[0])])
    assert trial.ok, trial.failure
    assert 1e-4 < trial.error < 1e-3


def test_nothing_is_left_behind(device: Device, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with LocalRunner(device, OPTIONS) as opened:
        for turn in range(2):
            assert [trial.ok for trial in opened.measure([candidate("right", turn)])] == [True]
            assert not list(tmp_path.glob("*/binaries*/*"))  # neither ours nor, beside it, a driver's own
    assert list(tmp_path.iterdir()) == []
