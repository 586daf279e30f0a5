"""Ten kernels that are wrong where one call with usual operands would not tell: none becomes a best."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tuner.measure.wrong import NAME, RIGHT, WAYS, WORKLOADS, candidate
from tuner.devices import Device, list_devices, open_device
from tuner.measure import LocalRunner, MeasureOptions
from tuning_db.record import FailureKind
from tuning_db.store import open_db

DEVICES = [open_device("cpu", 1), *(device for device in list_devices() if not device.is_host)]
OPTIONS = MeasureOptions(builders=1, plugins=("tests.tuner.measure.wrong",))
SAYS = {
    "second_call": "relative error",
    "beyond_five": "on large operands",
    "denormals_zeroed": "on denormal operands",
    "nan_swallowed": "on nan operands",
    "small_values": "on small operands",
    "out_of_bounds": "operand 'out': the memory around it was written to",
    "input_overwritten": "operand 'data': it was overwritten",
    "weight_overwritten": "operand 'weight': it was overwritten",
    "constant": "on large operands",
    "first_call_alone": "on small operands",
}


@pytest.fixture(scope="module", params=DEVICES, ids=lambda d: d.name)
def runner(request: pytest.FixtureRequest) -> Iterator[LocalRunner]:
    with LocalRunner(request.param, OPTIONS) as opened:
        yield opened


@pytest.mark.sampled(3)
def test_none_is_ever_a_best(runner: LocalRunner, tmp_path: Path) -> None:
    ways = [way for does in WAYS for way in (does, RIGHT)]
    trials = list(runner.measure([candidate(does) for does in ways]))
    device: Device = runner.device
    with open_db(tmp_path / "t.db") as store:
        for does, trial in zip(ways, trials, strict=True):
            store.add(trial)
            if does == RIGHT:
                assert trial.ok, trial.failure
                assert trial.error is not None
                assert trial.error < 1e-6
                continue
            assert trial.failure is not None, does
            assert trial.failure.kind is FailureKind.WRONG_ANSWER
            assert SAYS[does] in trial.failure.message, (does, trial.failure.message)
        assert [does for does in WAYS if store.best(WORKLOADS[does], device.key) is not None] == []
        best = store.best(WORKLOADS[RIGHT], device.key)
        assert best is not None
        assert best.config.template == NAME


def test_a_comparison_refuses_them_too(runner: LocalRunner) -> None:
    (trial,) = runner.compare([candidate("beyond_five")])
    assert trial.failure is not None
    assert trial.failure.kind is FailureKind.WRONG_ANSWER
