"""A model in the simulator by what the database knows: its best times, and a fitted roofline for the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from templates.workloads import flop_of
from tests.templates.gpu.support import GPUS, driver
from tests.tuner.graph.networks import Net
from tests.tuner.graph.test_onnx_vision import detector
from tests.tuner.graph.test_placed import branches
from tests.tuner.studies.test_known import convolutions, truth
from tuner.devices import Device, open_device
from tuner.errors import BadInput
from tuner.placement.memory import weights_of
from tuner.studies.baselines.whole import whole
from tuner.studies.estimated_network import estimated_network
from tuner.studies.simulator import Simulator
from tuner.studies.topology import DeviceSpec, Link, Memory, Topology
from tuning_db.record import Config, Trial
from tuning_db.store import Store, open_db


@pytest.fixture
def topology() -> Topology:
    names = ("opencl:0", "cpu")
    devices = tuple(DeviceSpec(n, "cpu", 1e11, 1e10, "host", cores="host") for n in names)
    links = tuple(Link(a, b, 1e10, 1e-5, "host") for a, b in (names, names[::-1]))
    return Topology("here", devices, (Memory("host", 1e10),), links)


@pytest.fixture(scope="module")
def devices() -> list[Device]:
    return [open_device("opencl:0"), open_device("cpu", 1)]


def fill(store: Store, devices: list[Device]) -> None:
    """The CPU takes twice as long."""
    for device, factor in zip(devices, (1, 2), strict=True):
        for w in convolutions():
            store.add(Trial(w, device.key, Config("some", {}), 1, (factor * truth(w),), error=1e-6))


def test_known_times_and_fitted_ones(tmp_path: Path, topology: Topology, devices: list[Device]) -> None:
    net, output = branches()
    graph = net.graph(tmp_path, output)
    tuned = {f"{i} {s.node}": s.workload for i, s in enumerate(graph.steps) if s in graph.tuned}
    known = next(iter(tuned))
    with open_db(tmp_path / "known.db") as store:
        fill(store, devices)
        store.add(Trial(tuned[known], devices[1].key, Config("some", {}), 1, (0.25,), error=1e-6))
        found = estimated_network(graph, devices, topology, store)
    assert [o.flop for o in found.network.operators if o.name in tuned] == [flop_of(w) for w in tuned.values()]
    assert found.cost.table[known, "cpu"] == 0.25
    simulator = Simulator(found.network, found.topology, found.cost)
    times = []
    for device in range(2):
        times.append(simulator.start([whole(o, device) for o in found.network.operators]))
        spans = {s.name.removesuffix("[0]"): (s.end - s.start) * 1e-12 for s in simulator.timeline().spans}
        assert sum(spans.values()) == pytest.approx(times[-1])
        made = sum(o.bytes for o in found.network.operators)
        assert simulator.memory == pytest.approx((made + sum(weights_of(s) for s in graph.steps),))
        for title, workload in tuned.items():
            expected = 0.25 if (title, device) == (known, 1) else (1, 2)[device] * truth(workload)
            assert spans[title] == pytest.approx(expected, rel=0.5)
    assert times[1] > 0.25 > 10 * times[0]


def test_what_a_device_cannot_compute_is_on_the_other(
    tmp_path: Path, topology: Topology, devices: list[Device]
) -> None:
    """Suppression needs local memory, which some GPUs lack."""
    net = Net()
    graph = net.graph(tmp_path, *detector(net, 40, 3, 8, 0.5))
    here = driver("pocl")
    lacking = replace(devices[0], target=here.target(GPUS["no_local_memory"]))
    with open_db(tmp_path / "known.db") as store:
        fill(store, devices)
        found = estimated_network(graph, [lacking, devices[1]], topology, store)
    assert "nms" in found.topology.devices[0].lacks
    assert "nms" not in found.topology.devices[1].lacks
    place = {o.kind: c.devices for o, c in zip(found.network.operators, found.strategy, strict=True)}
    assert place["nms"] == (1,)
    assert (0,) in place.values()
    assert Simulator(found.network, found.topology, found.cost).start(found.strategy) > 0


def test_a_device_without_trials_is_refused(tmp_path: Path, topology: Topology, devices: list[Device]) -> None:
    net, output = branches()
    with (
        open_db(tmp_path / "known.db") as store,
        pytest.raises(BadInput, match="device 'opencl:0': a roofline needs 4 measured"),
    ):
        estimated_network(net.graph(tmp_path, output), devices, topology, store)
