"""Operators without a weight are built, checked and timed like any other, on the host and on a driver."""

from __future__ import annotations

import pytest

from tests.tuner.measure.forgetful import candidate
from tests.vision_ops.test_contract import WORKLOADS
from tuner.devices import Device, list_devices, open_device
from tuner.measure import LocalRunner, MeasureOptions
from tuner.session import Budget, Task, TuneOptions, tune
from tuning_db.record import FailureKind
from tuning_db.store import open_db

pytestmark = pytest.mark.sampled(2)  # each runs on several devices

DEVICES = [device.name for device in list_devices()]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param, 1 if request.param == "cpu" else None)


def test_what_is_not_written_or_is_wrong_is_a_wrong_answer(device: Device) -> None:
    with LocalRunner(device, MeasureOptions(plugins=("tests.tuner.measure.forgetful",))) as runner:
        asked = [candidate(0, 0), candidate(1, 0), candidate(0, 1), candidate(0, 0)]
        trials = dict(enumerate(runner.measure(asked)))
    kinds = [trials[i].failure and trials[i].failure.kind for i in range(4)]
    assert kinds == [None, FailureKind.WRONG_ANSWER, FailureKind.WRONG_ANSWER, None]
    assert trials[0].error == 0


@pytest.mark.sampled(3)
def test_a_session_tunes_them_into_the_database(device: Device, tmp_path) -> None:
    with open_db(f"{tmp_path}/t.db") as store, LocalRunner(device, MeasureOptions()) as runner:
        for name in ("scan", "top k", "nms"):
            workload = WORKLOADS[name]
            tune([Task(workload, 1, name)], device, store, runner, TuneOptions(budget=Budget(trials=2), seed=0))
            best = store.best(workload, device.key)
            assert best is not None, name
            assert best.config.template.startswith("vision.")
            assert best.error is not None
            assert best.error <= 1e-4
