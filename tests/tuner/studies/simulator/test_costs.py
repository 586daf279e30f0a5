"""Costs: the roofline, and what was measured."""

from __future__ import annotations

import pytest

from tuner.studies.networks import NetworkOperator
from tuner.studies.simulator import Roofline
from tuner.studies.simulator.costs import Measured, Phase, Work
from tuner.studies.topology import DeviceSpec

DEVICE = DeviceSpec("d", "gpu", 1e12, 1e11, "d", 1e-5)
OPERATOR = NetworkOperator("conv", "conv2d", (4, 4, 4, 4), "spa-")


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
    other = NetworkOperator("other", "conv2d", (4, 4, 4, 4), "spa-")
    assert model.seconds(other, Phase.FORWARD, whole, 1.0, DEVICE) == pytest.approx(1e-3 + 1e-5)
