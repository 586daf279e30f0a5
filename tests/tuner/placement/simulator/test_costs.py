"""Costs: the roofline, what was measured, and a roofline that is fitted to measurements."""

from __future__ import annotations

import math
import random

import pytest

from tuner.errors import BadInput
from tuner.placement.networks import Operator
from tuner.placement.simulator import Roofline, fit_roofline
from tuner.placement.simulator.costs import Measured, Phase, Work
from tuner.placement.topology import DeviceSpec

DEVICE = DeviceSpec("d", "gpu", 1e12, 1e11, "d", 1e-5)
OPERATOR = Operator("conv", "conv2d", (4, 4, 4, 4), "spa-")


def test_the_slower_of_computing_and_moving_counts() -> None:
    model = Roofline(0.5, 0.5)
    assert model.seconds(OPERATOR, Phase.FORWARD, Work(1e9, 1e3), 1.0, DEVICE) == pytest.approx(2e-3 + 1e-5)
    assert model.seconds(OPERATOR, Phase.FORWARD, Work(1e3, 1e9), 1.0, DEVICE) == pytest.approx(2e-2 + 1e-5)


def test_a_part_has_its_share_of_what_was_measured() -> None:
    whole = Work(1e9, 1e6)
    model = Measured({("conv", "d"): 4e-3}, {"conv": whole}, Roofline(1, 1))
    assert model.seconds(OPERATOR, Phase.FORWARD, whole, 1.0, DEVICE) == 4e-3
    half = model.seconds(OPERATOR, Phase.FORWARD, Work(5e8, 5e5), 0.5, DEVICE)
    assert 2e-3 < half < 2.1e-3  # and the overhead is not halved
    other = Operator("other", "conv2d", (4, 4, 4, 4), "spa-")
    assert model.seconds(other, Phase.FORWARD, whole, 1.0, DEVICE) == pytest.approx(1e-3 + 1e-5)


def test_a_device_is_found_again_from_what_it_took() -> None:
    rng = random.Random(0)
    works = [Work(10 ** rng.uniform(6, 10), 10 ** rng.uniform(4, 8)) for _ in range(40)]
    samples = [(w, (w.flop / 2e11 + w.bytes / 3e10 + 2e-5) * rng.uniform(0.97, 1.03)) for w in works]
    found = fit_roofline(samples, DEVICE)
    assert found.flops == pytest.approx(2e11, rel=0.1)
    assert found.bandwidth == pytest.approx(3e10, rel=0.2)
    assert found.overhead == pytest.approx(2e-5, rel=0.1)


def test_a_fit_is_never_negative() -> None:
    samples = [(Work(f, 1e6), 1e-9 * f) for f in (1e3, 1e4, 1e5, 1e6)]
    found = fit_roofline(samples, DEVICE)
    assert found.overhead >= 0
    assert found.bandwidth > 0
    assert found.flops == pytest.approx(1e9)


def test_too_little_to_fit_is_said() -> None:
    with pytest.raises(BadInput, match="needs 3 measured times"):
        fit_roofline([(Work(1, 1), 1.0)], DEVICE)
    with pytest.raises(BadInput, match="needs 3 measured times"):
        fit_roofline([(Work(1, 1), math.nan)] * 3, DEVICE)
    with pytest.raises(BadInput, match="no sample has flop"):
        fit_roofline([(Work(0, i), 1.0 + i) for i in range(1, 5)], DEVICE)
