"""Bounds of simulated seconds: errors that are known come out again."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.errors import BadInput
from tuner.studies.baselines import strategy_of
from tuner.studies.networks import network
from tuner.studies.simulator import Roofline
from tuner.studies.simulator.contention import contended
from tuner.studies.simulator.perturbed import (
    Case,
    Perturbation,
    Ratios,
    Slowed,
    between,
    drawn_cost,
    simulated_again,
)
from tuner.studies.topology import topology_of

NET, AISAGE = network("alexnet", batch=1), topology_of("aisage")
CASES = {device: Case(NET, strategy_of(device, NET, AISAGE)) for device in ("cpu", "gpu")}
SECONDS = {name: contended(NET, AISAGE, case.strategy, cost=Roofline()) for name, case in CASES.items()}
SPREAD = (0.5, 0.8, 1.0, 1.25, 2.0)


@pytest.mark.parametrize("together", [False, True])
def test_without_errors_nothing_changes_and_those_of_a_device_are_its_own(together: bool) -> None:
    ratios = {"cpu": Ratios({"conv2d": (1.0,)}), "gpu": Ratios({"conv2d": (1.5,)}, (2.0,))}
    found = simulated_again(CASES, AISAGE, Roofline(), Perturbation(ratios, 0, together), draws=3)
    assert found["cpu"] == pytest.approx([SECONDS["cpu"]] * 3)
    assert found["gpu"] == pytest.approx([3 * SECONDS["gpu"]] * 3)  # pooling and dense layers, too: nothing is known


def test_a_kind_has_the_errors_of_its_own() -> None:
    ratios = {d: Ratios({"conv2d": (1.0,), "pool": (1.0,), "matmul": (3.0,)}) for d in ("cpu", "gpu")}
    found = simulated_again(CASES, AISAGE, Roofline(), Perturbation(ratios, 0, True), draws=1)["cpu"]
    dense = [o for o in NET.operators if o.kind == "matmul"]
    assert SECONDS["cpu"] < found[0] < 3 * SECONDS["cpu"]
    assert len(dense) == 3


@pytest.mark.parametrize("together", [False, True])
def test_the_seed_decides_and_cases_share_a_draw(together: bool) -> None:
    ratios = {device: Ratios({"conv2d": SPREAD}, SPREAD) for device in ("cpu", "gpu")}
    twice = CASES | {"again": CASES["cpu"]}
    one, other = (
        simulated_again(twice, AISAGE, Roofline(), Perturbation(ratios, 3, together), draws=20) for _ in range(2)
    )
    different = simulated_again(twice, AISAGE, Roofline(), Perturbation(ratios, 4, together), draws=20)
    for name in twice:
        assert np.array_equal(one[name], other[name])
        assert not np.array_equal(one[name], different[name])
    assert np.array_equal(one["cpu"], one["again"])
    costs = [drawn_cost(Roofline(), Perturbation(ratios, 3, together), draw) for draw in range(20)]
    assert list(one["cpu"]) == [contended(NET, AISAGE, CASES["cpu"].strategy, cost=cost) for cost in costs]
    reordered = simulated_again(
        dict(reversed(twice.items())), AISAGE, Roofline(), Perturbation(ratios, 3, together), draws=20
    )
    assert np.array_equal(one["gpu"], reordered["gpu"])


def test_errors_of_each_operator_cancel_out_and_those_of_all_do_not() -> None:
    ratios = {device: Ratios({"conv2d": SPREAD}) for device in ("cpu", "gpu")}
    net = network("resnet101", batch=1)
    case = {"gpu": Case(net, strategy_of("gpu", net, AISAGE))}
    widths = []
    for together in (False, True):
        low, high = between(
            simulated_again(case, AISAGE, Roofline(), Perturbation(ratios, 0, together), draws=60)["gpu"]
        )
        widths.append(high / low)
    assert 1 < widths[0] < 2
    assert widths[1] > 2.5


def test_errors_of_modules_come_on_top() -> None:
    ratios = {device: Ratios({"conv2d": (1.0,)}) for device in ("cpu", "gpu")}
    found = simulated_again(CASES, AISAGE, Roofline(), Perturbation(ratios, 0, True), draws=40, modules=(0.8, 1.2))
    shares = {round(float(s), 6) for s in found["cpu"] / SECONDS["cpu"]}
    assert shares == {0.8, 1.2}
    assert not np.array_equal(found["cpu"] > SECONDS["cpu"], found["gpu"] > SECONDS["gpu"])


def test_a_device_can_be_slowed_down() -> None:
    slowed = Slowed(Roofline(), {"gpu": 2.5})
    for name, factor in (("cpu", 1), ("gpu", 2.5)):
        assert contended(NET, AISAGE, CASES[name].strategy, cost=slowed) == pytest.approx(factor * SECONDS[name])


def test_what_cannot_be_drawn() -> None:
    perturbation = Perturbation({"gpu": Ratios({"conv2d": (1.0,)})}, 0, together=True)
    with pytest.raises(BadInput, match="aisage: no ratios of device 'cpu': there are some of gpu"):
        simulated_again(CASES, AISAGE, Roofline(), perturbation, draws=1)
    for kinds, whole in (({}, (1.0,)), ({"conv2d": (0.0,)}, (1.0,)), ({"conv2d": (1.0,)}, ())):
        with pytest.raises(BadInput, match="must be there and above 0"):
            Ratios(kinds, whole)


def test_bounds() -> None:
    assert between(np.arange(101.0)) == (5.0, 95.0)
