"""Ways of placing: never slower in the simulator than what needs no search, memory is kept to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.tuner.graph.networks import Net
from tests.tuner.graph.test_placed import branches
from tests.tuner.placement.test_known import convolutions, truth
from tuner.devices import Device, open_device
from tuner.errors import BadInput
from tuner.graph import FusedGraph
from tuner.placement.baselines.whole import whole
from tuner.placement.estimated import Estimates, estimated_network
from tuner.placement.fallback import CPU, GPU
from tuner.placement.memory import memory_on
from tuner.placement.simulator import Simulator
from tuner.placement.topology import DeviceSpec, Link, Memory, Topology
from tuner.placement.ways import WAYS, Placing, check_known, place
from tuning_db.record import Config, Trial
from tuning_db.store import open_db

NAMES = ("opencl:0", "cpu")
Place = Callable[..., Placing]


@pytest.fixture(scope="module")
def devices() -> list[Device]:
    return [open_device(NAMES[0]), open_device(NAMES[1], 1)]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> FusedGraph:
    net, output = branches()
    return net.graph(tmp_path_factory.mktemp("ways"), output)


def topology(latency: float) -> Topology:
    specs = tuple(DeviceSpec(n, n, 1e11, 1e10, n) for n in NAMES)
    links = tuple(Link(a, b, 1e10, latency) for a, b in (NAMES, NAMES[::-1]))
    return Topology("here", specs, tuple(Memory(n) for n in NAMES), links)


def placed(
    way: str,
    graph: FusedGraph,
    devices: list[Device],
    folder: Path,
    latency: float = 1e-7,
    slow: float = 1.1,
    limit: float = 2.0,
) -> tuple[Placing, Simulator]:
    """By a database in which the CPU takes `slow` times as long; and a simulator of the same."""
    with open_db(folder / "t.db") as store:
        for device, factor in zip(devices, (1.0, slow), strict=True):
            for w in convolutions():
                store.add(Trial(w, device.key, Config("some", {}), 1, (factor * truth(w),), error=1e-6))
        found = place(way, graph, devices, topology(latency), store, seconds=limit)
        given = estimated_network(graph, devices, topology(latency), store)
    return found, Simulator(given.network, given.topology, given.cost)


def seconds(simulator: Simulator, placement: tuple[int, ...]) -> float:
    each = zip(simulator.network.operators, placement, strict=True)
    return simulator.start([whole(o, d) for o, d in each])


@pytest.mark.parametrize("way", ["exact", "mcmc"])
@pytest.mark.parametrize("latency", [1e-7, 1e-2])
def test_nothing_is_slower_than_what_needs_no_search(
    graph: FusedGraph, devices: list[Device], tmp_path: Path, way: str, latency: float
) -> None:
    found, simulator = placed(way, graph, devices, tmp_path, latency)
    count = len(graph.steps)
    assert found.simple == {
        "opencl:0 alone": seconds(simulator, (GPU,) * count),
        "cpu alone": seconds(simulator, (CPU,) * count),
        "fallback": seconds(simulator, (GPU,) * count),
    }
    assert found.seconds <= min(found.found, *found.simple.values())
    assert (found.taken == way) == (found.seconds < min(found.simple.values()))
    if not found.split.whole:
        assert found.seconds == seconds(simulator, found.placement)
    if latency == 1e-2:  # no step is worth a copy
        assert set(found.placement) == {GPU}
        assert found.taken != way
        assert "no gain" in found.text()


def test_both_work_at_the_same_time(graph: FusedGraph, devices: list[Device], tmp_path: Path) -> None:
    """Branches, nearly as fast on both: the search finds what is faster than any one device, the sum sees no gain."""
    found, _ = placed("mcmc", graph, devices, tmp_path, limit=8.0)
    assert found.taken == "mcmc"
    summed, _ = placed("exact", graph, devices, tmp_path)
    assert found.found < summed.seconds == summed.simple["opencl:0 alone"]


def large(folder: Path) -> FusedGraph:
    """A chain of convolutions: no two of them can be computed at the same time but in parts."""
    net = Net()
    x = net.input(1, 64, 56, 56)
    for _ in range(2):
        x = net.op("Relu", net.conv(x, (64, 64), pads=[1, 1, 1, 1]))
    return net.graph(folder, x)


def test_steps_in_parts_are_taken_where_they_are_faster(devices: list[Device], tmp_path: Path) -> None:
    """Links cost next to nothing: what is built is simulated as it is built, each part where it is."""
    graph = large(tmp_path)
    found, _ = placed("mcmc", graph, devices, tmp_path, latency=1e-9, slow=2.0, limit=8.0)
    assert found.taken == "mcmc"
    assert found.split.whole
    assert found.in_parts == found.seconds < found.found
    assert "steps are split" in found.text()
    assert len(found.placement) == len(found.split.graph.steps) > len(graph.steps)
    with open_db(tmp_path / "t.db") as store:
        estimates = Estimates(devices, topology(1e-9), store, graph.dtype)
        parts = estimates.network(found.split.graph, found.split.whole)
    assert seconds(Simulator(parts.network, parts.topology, parts.cost), found.placement) == found.seconds


def test_steps_in_parts_are_left_where_copies_cost_more(devices: list[Device], tmp_path: Path) -> None:
    found, _ = placed("mcmc", large(tmp_path), devices, tmp_path, latency=1e-2, slow=2.0, limit=2.0)
    assert not found.split.whole
    assert set(found.placement) == {GPU}


def test_rows_are_split_all_together_where_copies_cost(devices: list[Device], tmp_path: Path) -> None:
    """Half of a value takes as long to copy as a convolution: no step is worth being split alone, nor are two."""
    net = Net()
    x = net.input(1, 4, 56, 56)
    for read, made in pairwise((4, 64, 64, 64, 64, 4)):
        x = net.op("Relu", net.conv(x, (read, made), pads=[1, 1, 1, 1]))
    graph = net.graph(tmp_path, x)
    rate = 4e5 / truth(graph.anchors[1].workload)
    slow = replace(topology(1e-7), links=tuple(Link(a, b, rate, 1e-7) for a, b in (NAMES, NAMES[::-1])))
    with open_db(tmp_path / "t.db") as store:
        for device in devices:
            for w in convolutions():
                store.add(Trial(w, device.key, Config("some", {}), 1, (truth(w),), error=1e-6))
        found = place("mcmc", graph, devices, slow, store, seconds=8.0)
    assert found.taken == "mcmc"
    assert found.in_parts == found.seconds < 0.9 * found.found
    parts = [step.node for step in found.split.graph.anchors if step.out in found.split.whole]
    assert parts
    assert all("[rows " in node for node in parts)


def test_memory_is_kept_to(devices: list[Device], tmp_path: Path) -> None:
    """The second convolution makes 2 MiB, and the CPU takes ten times as long."""
    net = Net()
    x = net.conv(net.input(1, 3, 64, 64), (3, 16), 1)
    for channels in ((16, 128), (128, 16)):
        x = net.conv(x, channels, 1)
    graph = net.graph(tmp_path, x)
    small = [replace(devices[0], memory_bytes=1 << 20), devices[1]]
    for way in ("exact", "mcmc"):
        found, _ = placed(way, graph, small, tmp_path, slow=10.0)
        assert found.simple["opencl:0 alone"] == math.inf
        assert memory_on(graph, found.placement, GPU) <= 1 << 20
        assert set(found.placement) == {GPU, CPU}
        assert found.seconds <= found.simple["fallback"]
        free, _ = placed(way, graph, devices, tmp_path, slow=10.0)
        assert set(free.placement) == {GPU}


def test_every_way_is_known_and_too_few_trials_are_told(devices: list[Device], tmp_path: Path) -> None:
    assert set(WAYS) == {"exact", "mcmc", "learned"}
    with open_db(tmp_path / "t.db") as store:
        store.add(Trial(convolutions()[0], devices[0].key, Config("some", {}), 1, (1e-3,), error=1e-6))
        with pytest.raises(BadInput, match="device 'opencl:0': a roofline needs 4 measured workloads, not 1"):
            check_known(store, devices, "float32")
