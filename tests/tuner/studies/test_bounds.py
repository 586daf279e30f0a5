"""Bounds of the exhaustive search: below everything that begins so."""

from __future__ import annotations

import random

import pytest

from tests.tuner.studies.simulator.test_simulator import on_shared_cores
from tuner.studies.bounds import Bounds
from tuner.studies.networks import network
from tuner.studies.simulator import Simulator
from tuner.studies.soap import configs_of
from tuner.studies.topology import Topology, topology_of


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("name", "options", "devices"),
    [("lenet", {}, 4), ("rnnlm", {"steps": 2}, 4), ("nmt", {"steps": 1, "hidden": 256}, 3)],
)
def test_no_strategy_is_faster_than_the_bounds_of_its_beginnings(
    name: str, options: dict[str, int], devices: int, training: bool
) -> None:
    tightness = bounded(name, options, topology_of(f"p100:{devices}"), training)
    assert sum(tightness) / len(tightness) > 0.6  # else it prunes nothing


@pytest.mark.parametrize("training", [True, False])
def test_bounds_hold_where_devices_share_cores(training: bool) -> None:
    assert bounded("lenet", {}, on_shared_cores(4), training)


def bounded(name: str, options: dict[str, int], topology: Topology, training: bool) -> list[float]:
    """What share of strategies' times the bounds are, which are never above them."""
    net, rng = network(name, **options), random.Random(name)
    simulator = Simulator(net, topology, training=training)
    configs = [configs_of(o, topology) for o in net.operators]
    bounds, tightness = Bounds(simulator.blocks, configs), []
    for _ in range(60):
        chosen = [rng.randrange(len(of)) for of in configs]
        ticks = round(simulator.start([of[i] for of, i in zip(configs, chosen, strict=True)]) * 1e12)
        found = [bounds.after(chosen[:k])[chosen[k]] for k in range(len(chosen))]
        assert max(found) <= ticks
        tightness.append(found[-1] / ticks)
    return tightness
