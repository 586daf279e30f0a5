"""Rooflines from measured kernels: a device that is known is found again, whatever a few trials say."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import BadInput
from tuner.studies.networks import NetworkOperator
from tuner.studies.simulator.costs import Measured, Phase, Work
from tuner.studies.simulator.fitting import FittedCosts, Peaks, Sample, fit_kinds, left_out_ratios
from tuner.studies.topology import DeviceSpec

DEVICE = DeviceSpec("d", "gpu", 1e12, 1e11, "d")
TRUTH = {"conv2d": Peaks(4e11, 3e10), "depthwise": Peaks(5e10, 2e10)}
OVERHEAD = 1e-5


def taken(peaks: Peaks, work: Work, overhead: float = OVERHEAD) -> float:
    return max(work.flop / peaks.flops, work.bytes / peaks.bandwidth) + overhead


def measured(rng: random.Random, each: int, noise: float, truth: dict[str, Peaks] = TRUTH) -> list[Sample]:
    """Half of them bound by either, some so small that they take little but the launch."""
    found = []
    for kind, peaks in truth.items():
        for i in range(each):
            moved = 10 ** rng.uniform(4.5, 7.5)
            intensity = peaks.flops / peaks.bandwidth * 10 ** (rng.uniform(0.3, 1.5) * (-1) ** i)
            work = Work(moved * intensity, moved)
            found.append(Sample(kind, work, taken(peaks, work) * math.exp(rng.gauss(0, noise))))
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(5))
def test_a_known_device_is_found_again(seed: int) -> None:
    found = fit_kinds(measured(random.Random(seed), 24, 0.05), DEVICE)
    for kind, peaks in TRUTH.items():
        assert found.peaks[kind].flops == pytest.approx(peaks.flops, rel=0.1)
        assert found.peaks[kind].bandwidth == pytest.approx(peaks.bandwidth, rel=0.1)
    assert found.overhead == pytest.approx(OVERHEAD, rel=0.25)
    assert found.error.samples == 48
    assert 0.01 < found.error.median < 0.08  # the noise
    assert found.error.median <= found.error.high < 0.2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(5))
def test_some_wrong_times_move_it_little(seed: int) -> None:
    rng = random.Random(seed)
    samples = measured(rng, 24, 0.03)
    for i in rng.sample(range(len(samples)), 5):
        samples[i] = samples[i]._replace(seconds=samples[i].seconds * rng.choice((8.0, 20.0)))
    found = fit_kinds(samples, DEVICE)
    for kind, peaks in TRUTH.items():
        assert found.peaks[kind].flops == pytest.approx(peaks.flops, rel=0.15)
        assert found.peaks[kind].bandwidth == pytest.approx(peaks.bandwidth, rel=0.15)
    assert found.error.median < 0.08
    assert found.error.high > found.error.median


@settings(max_examples=8)
@given(st.floats(1e9, 1e13), st.floats(1e8, 1e12), st.floats(0.3, 3))
def test_any_device_is_found_again_without_noise(flops: float, bandwidth: float, factor: float) -> None:
    """Whatever peaks its data sheet has."""
    truth = {"conv2d": Peaks(flops, bandwidth)}
    samples = [
        s._replace(seconds=taken(truth["conv2d"], s.work, 0.0)) for s in measured(random.Random(0), 16, 0, truth)
    ]
    sheet = DeviceSpec("d", "gpu", flops * factor, bandwidth * factor, "d")
    found = fit_kinds(samples, sheet)
    assert found.error.median < 0.05
    assert found.peaks["conv2d"].flops == pytest.approx(flops, rel=0.1)
    assert found.peaks["conv2d"].bandwidth == pytest.approx(bandwidth, rel=0.1)


def test_what_the_samples_leave_open_is_the_devices() -> None:
    """All are bound by computing: nothing tells the memory's rate but that it is no less than what was moved."""
    rng, peaks = random.Random(1), Peaks(4e11, 1e11)
    works = [Work(10 ** rng.uniform(8, 10), 1e5) for _ in range(12)]
    found = fit_kinds([Sample("conv2d", w, taken(peaks, w)) for w in works], DEVICE)
    assert found.peaks["conv2d"].flops == pytest.approx(4e11, rel=0.05)
    assert found.peaks["conv2d"].bandwidth == DEVICE.bandwidth


def test_a_kind_with_few_samples_or_none_has_the_peaks_of_all() -> None:
    rng = random.Random(2)
    few = [Sample("dense", w, taken(TRUTH["conv2d"], w)) for w in (Work(1e8, 1e6), Work(1e7, 1e7))]
    found = fit_kinds([*measured(rng, 20, 0.02, {"conv2d": TRUTH["conv2d"]}), *few], DEVICE)
    assert set(found.peaks) == {"conv2d"}
    assert set(found.errors) == {"conv2d", "dense"}
    for kind in ("dense", "never seen"):
        work = Work(2e9, 1e6)
        assert found.seconds(kind, work) == pytest.approx(taken(TRUTH["conv2d"], work), rel=0.15)
    assert "median error" in found.text()


def test_more_samples_than_folds_are_left_out_in_groups() -> None:
    found = fit_kinds(measured(random.Random(4), 50, 0.05), DEVICE)
    assert found.error.samples == 100
    assert found.error.median < 0.08


def test_ratios_of_what_was_left_out_have_the_errors_that_the_fit_tells() -> None:
    samples = measured(random.Random(5), 20, 0.05)
    samples[7] = samples[7]._replace(seconds=3 * samples[7].seconds)
    found, ratios = fit_kinds(samples, DEVICE), left_out_ratios(samples, DEVICE)
    assert {kind: len(r) for kind, r in ratios.items()} == {"conv2d": 20, "depthwise": 20}
    for kind, error in found.errors.items():
        assert statistics.median(abs(1 / r - 1) for r in ratios[kind]) == pytest.approx(error.median)
    assert max(ratios[samples[7].kind]) == pytest.approx(3, rel=0.2)  # it took longer than the others say
    with pytest.raises(BadInput, match="needs 4 measured workloads"):
        left_out_ratios(samples[:3], DEVICE)


def test_it_is_a_cost_model_behind_what_was_measured() -> None:
    fit = fit_kinds(measured(random.Random(3), 20, 0.02), DEVICE)
    costs = FittedCosts({"d": fit})
    operator = NetworkOperator("one", "depthwise", (1, 8), "--")
    work = Work(1e8, 1e6)
    modelled = costs.seconds(operator, Phase.FORWARD, work, 1.0, DEVICE)
    assert modelled == fit.seconds("depthwise", work) == pytest.approx(taken(TRUTH["depthwise"], work), rel=0.1)
    known = Measured({("one", "d"): 1.0}, {"one": work}, costs)
    assert known.seconds(operator, Phase.FORWARD, work, 1.0, DEVICE) == 1.0
    other = NetworkOperator("two", "depthwise", (1, 8), "--")
    assert known.seconds(other, Phase.FORWARD, work, 1.0, DEVICE) == modelled
    with pytest.raises(BadInput, match="device 'e': no roofline was fitted for it"):
        costs.seconds(operator, Phase.FORWARD, work, 1.0, DeviceSpec("e", "gpu", 1, 1, "e"))


def test_too_little_to_fit_is_said() -> None:
    some = measured(random.Random(0), 2, 0)
    with pytest.raises(BadInput, match="needs 4 measured workloads, not 3"):
        fit_kinds(some[:3], DEVICE)
    for wrong in (some[0]._replace(seconds=math.nan), some[0]._replace(work=Work(0, 0))):
        with pytest.raises(BadInput, match="a sample of conv2d has no work or no time"):
            fit_kinds([*some, wrong], DEVICE)
