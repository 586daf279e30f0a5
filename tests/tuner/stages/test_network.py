"""Kernels timed in their network, and found again by what they compute."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.templates.gpu.support import device_number
from tests.tuner.graph.networks import Net
from tests.tuner.stages.networks import host
from tuner.devices import Device, open_device
from tuner.graph import DevicePlan, FusedGraph, lower_alone, lower_placed
from tuner.graph.layout.choice import choose
from tuner.placement.exact import plan_network
from tuner.placement.step_costs import Costs
from tuner.stages.network import NetworkKernels
from tuning_db.store import open_db


@pytest.fixture(scope="module", params=["pocl", "cpu"])
def device(request: pytest.FixtureRequest) -> Device:
    return host(2) if request.param == "cpu" else open_device(f"opencl:{device_number(request.param)}")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> FusedGraph:
    """Two convolutions that write their parts of a concatenation."""
    net = Net()
    stem = net.op("Relu", net.conv(net.input(1, 16, 14, 14), (16, 16), 3))
    branches = [net.op("Relu", net.conv(stem, (16, 32), size, pads=[size // 2] * 4)) for size in (1, 3)]
    joined = net.op("Concat", *branches, axis=1)
    return net.graph(tmp_path_factory.mktemp("net"), net.op("MaxPool", joined, kernel_shape=[2, 2]))


@pytest.mark.sampled(2)
def test_kernels_of_steps_are_found_in_the_network(graph: FusedGraph, device: Device) -> None:
    """Where they write a part of a concatenation, too."""
    choices = choose((s.workload for s in graph.tuned), device, None)
    device_plan = DevicePlan(device.target, {w: c.config for w, c in choices.items()})
    found = NetworkKernels(lower_placed(graph, [device_plan], [0] * len(graph.steps)), device).seconds(runs=3)
    assert all(0 < seconds < math.inf for seconds in found.values())
    for step in graph.tuned:
        kernels = lower_alone(graph, step, device_plan).kernels
        assert kernels
        assert set(kernels) <= found.keys()


@pytest.mark.sampled(2)
def test_what_kernels_take_in_a_network_comes_before_all_else(
    graph: FusedGraph, device: Device, tmp_path: Path
) -> None:
    choices = choose((s.workload for s in graph.tuned), device, None)
    device_plan = DevicePlan(device.target, {w: c.config for w, c in choices.items()})
    kernels = {kernel for step in graph.tuned for kernel in lower_alone(graph, step, device_plan).kernels}
    with open_db(tmp_path / "t.db") as store:
        costs = Costs([device], store, networks=[dict.fromkeys(kernels, 1e-9)])
        plan = plan_network(graph, [device], [{w: (c,) for w, c in choices.items()}], costs)
    anchors = [state for node in plan.nodes for state in node.states if state.kernel]
    assert len(anchors) == len(graph.tuned)
    assert {state.source for state in anchors} == {"network"}
    assert all(state.seconds <= 1e-8 for state in anchors)
