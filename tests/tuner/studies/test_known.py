"""Costs from the database: its best where it has a workload, a roofline that is fitted to the others where not."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from templates.traffic import bytes_of
from templates.workloads import Conv2d, Dense, kind_of
from tuner.devices import Device, open_device
from tuner.errors import BadInput
from tuner.measure import LocalRunner
from tuner.session import Budget, Task, TuneOptions, tune
from tuner.studies.database_costs import DatabaseCosts, fitted, samples_of, work_of
from tuner.studies.simulator.costs import Work
from tuner.studies.topology import DeviceSpec
from tuning_db.record import THROTTLED, Config, DeviceKey, Failure, FailureKind, Trial, Workload
from tuning_db.store import Store, open_db

KEY = DeviceKey("cpu", "x86_64-avx2", "some", {"threads": 2})
DEVICE = DeviceSpec("cpu", "cpu", 1e12, 1e11, "cpu")
FLOPS, BANDWIDTH, OVERHEAD = 1.5e11, 2e10, 3e-6


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_db(tmp_path / "known.db") as found:
        yield found


def convolutions() -> list[Workload]:
    sizes = [(c, s, k) for c in (8, 32, 128) for s in (7, 28, 56) for k in (1, 3)]
    found = [Conv2d(1, c, s, s, c, (k, k), (1, 1), (k // 2,) * 4).workload() for c, s, k in sizes]
    return found + [Dense(1, n, 1000).workload() for n in (256, 512, 1024, 2048, 4096)]


def truth(workload: Workload) -> float:
    work = work_of(workload)
    assert work is not None
    return max(work.flop / FLOPS, work.bytes / BANDWIDTH) + OVERHEAD


def trial(workload: Workload, seconds: float, tile: int = 0, key: DeviceKey = KEY, **more: object) -> Trial:
    times = () if more.get("failure") else (seconds,)
    return Trial(workload, key, Config("some", {"tile": tile}), 1, times, **{"error": 1e-6, **more})  # type: ignore[arg-type]


def filled(store: Store, workloads: list[Workload], noise: float = 0.04) -> None:
    """The best of each is what the device takes; slower, failed, wrong and throttled ones lie about."""
    rng = random.Random(0)
    for w in workloads:
        store.add(trial(w, truth(w) * math.exp(rng.gauss(0, noise)), 0))
        store.add(trial(w, 5 * truth(w), 1))
        store.add(trial(w, 0.0, 2, failure=Failure(FailureKind.RUN, "no"), error=None))
        store.add(trial(w, 1e-9, 3, error=0.5))
        store.add(trial(w, 1e-9, 4, versions={THROTTLED: True}))


def test_kinds_and_work() -> None:
    conv = Conv2d(1, 8, 4, 4, 8, (3, 3), (1, 1), (1, 1, 1, 1), groups=8).workload()
    assert kind_of(conv) == "depthwise conv2d"
    assert kind_of(Conv2d(1, 8, 4, 4, 8, (1, 1), groups=2).workload()) == "grouped conv2d"
    assert kind_of(Dense(1, 2, 3).workload()) == "dense"
    assert work_of(Dense(1, 2, 3).workload()) == Work(12.0, 4 * (2 + 6 + 3))
    assert work_of(Workload("step", {"operator": "nn.softmax"})) is None


def test_the_best_trials_are_the_samples(store: Store) -> None:
    workloads = convolutions()
    filled(store, workloads, noise=0.0)
    store.add(trial(Dense(1, 2, 3).workload(), 1.0, key=DeviceKey("cpu", "other", "other", {})))
    store.add(trial(Dense(1, 2, 3).workload(dtype="float16"), 1.0))
    store.add(trial(Workload("copy", {"bytes": 4096, "to": "cpu"}), 1e-5, error=None))
    samples = samples_of(store, KEY)
    assert [s.seconds for s in samples] == [truth(w) for w in workloads]
    assert [s.work.bytes for s in samples] == [bytes_of(w) for w in workloads]


def test_the_databases_best_or_the_fit(store: Store) -> None:
    workloads = convolutions()
    untried = workloads[::6]
    filled(store, [w for w in workloads if w not in untried])
    costs = DatabaseCosts(store, [KEY], [DEVICE])
    (fit,) = costs.fits
    assert fit.error.samples == len(workloads) - len(untried)
    assert fit.error.median < 0.15
    assert fit.overhead == pytest.approx(OVERHEAD, rel=0.3)
    for workload in workloads:
        cost = costs.cost(workload, 0)
        assert cost is not None
        assert cost.source == ("fitted" if workload in untried else "device")
        assert cost.seconds == pytest.approx(truth(workload), rel=0.3)
    assert costs.cost(Workload("unheard of", {}), 0) is None


def test_a_device_without_trials_is_refused(store: Store) -> None:
    with pytest.raises(BadInput, match="device 'cpu': a roofline needs 4 measured workloads, not 0"):
        DatabaseCosts(store, [KEY], [DEVICE])


@pytest.mark.sampled(2)
def test_real_trials_are_fitted(store: Store) -> None:
    """A few of each workload, measured now, on the CPU."""
    device: Device = open_device("cpu", 1)
    sizes = [(8, 8, 1), (16, 16, 1), (32, 14, 3), (64, 28, 1), (64, 28, 3), (32, 56, 1)]
    convs = [Conv2d(1, c, s, s, c, (k, k), (1, 1), (k // 2,) * 4).workload() for c, s, k in sizes]
    tasks = [Task(w, 1, str(i)) for i, w in enumerate(convs)]
    with LocalRunner(device) as runner:
        for task in tasks:
            tune([task], device, store, runner, TuneOptions(searcher="random", budget=Budget(trials=3)))
    samples = samples_of(store, device.key)
    assert len(samples) == len(tasks)
    found = fitted(store, device.key, DeviceSpec("cpu", "cpu", 1e11, 2e10, "cpu"))
    assert found.error.samples == len(tasks)
    assert 0 < found.error.median <= found.error.high < math.inf
    assert 1e8 < found.peaks["conv2d"].flops < 1e13
    big, small = (found.seconds("conv2d", Work(f, 1e6)) for f in (1e12, 1e6))
    assert big > 10 * small > 0
