"""Exact placement of networks: measured costs, and a module that computes what onnx computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from templates.template import PLAIN, anchor_template, search_space
from tests.tuner.graph.networks import Net, assert_close, expected, random_inputs
from tests.tuner.graph.test_onnx_vision import detector
from tests.tuner.graph.test_placed import branches, run
from tuner.devices import Device, open_device
from tuner.graph import DevicePlan, FusedGraph, lower_placed
from tuner.graph.layout.choice import Choice, choose
from tuner.placement.exact import NetworkPlan, plan_network, seconds_alone
from tuner.placement.step_costs import COPIES, Costs
from tuning_db.record import Workload
from tuning_db.store import Store, open_db

LINKS = {(0, 1): (2e-5, 2e-10), (1, 0): (2e-5, 2e-10)}  # what they take matters to one test alone, which measures them


@pytest.fixture(scope="module")
def devices() -> list[Device]:
    return [open_device("opencl:0"), open_device("cpu", 1)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_db(tmp_path / "costs.db") as found:
        yield found


def choices_of(graph: FusedGraph, devices: list[Device]) -> list[dict[Workload, tuple[Choice, ...]]]:
    found = [choose((s.workload for s in graph.tuned), device, None) for device in devices]
    return [{w: (choice,) for w, choice in known.items()} for known in found]


def assert_runs(net: Net, graph: FusedGraph, devices: list[Device], found: NetworkPlan, *outputs: str) -> None:
    planned = found.planned
    kernels = {out: choice.config for out, choice in planned.kernels.items()}
    device_plans = [DevicePlan(device.target, {}, kernels) for device in devices]
    whole, inputs = lower_placed(graph, device_plans, planned.placement, planned.blocks), random_inputs(graph)
    assert_close(run(graph, devices, whole, inputs), expected(net.model(*outputs), inputs))


@pytest.mark.sampled(2)
@pytest.mark.slow
def test_a_network_is_planned_from_measured_costs_once(tmp_path: Path, devices: list[Device], store: Store) -> None:
    net, output = branches()
    graph = net.graph(tmp_path, output)
    costs = Costs(devices, store)
    found = plan_network(graph, devices, choices_of(graph, devices), costs)
    assert found.plan.optimal
    assert len(found.planned.placement) == len(graph.steps)
    assert costs.measured > 10
    assert {t.workload.op for t in store.trials()} >= {"step", "transform", "crossing"}
    assert_runs(net, graph, devices, found, output)
    again = Costs(devices, store)
    assert plan_network(graph, devices, choices_of(graph, devices), again).plan == found.plan
    assert again.measured == 0


@pytest.mark.sampled(2)
def test_links_that_are_given_are_not_measured(devices: list[Device], store: Store) -> None:
    given = Costs(devices, store, links={(0, 1): (1e-3, 1e-9)})
    assert given.copy(1000, 0, 1) == pytest.approx(1.001e-3)
    assert given.measured == 0
    assert 0 < given.copy(1000, 1, 0) < 1
    assert given.measured == len(COPIES)
    assert [t.workload.attrs["bytes"] for t in store.trials()] == list(COPIES)


@pytest.mark.sampled(2)
def test_no_single_device_is_better(tmp_path: Path, devices: list[Device], store: Store) -> None:
    net, output = branches()
    graph = net.graph(tmp_path, output)
    chosen = choices_of(graph, devices)
    both = plan_network(graph, devices, chosen, Costs(devices, store, links=LINKS))
    for i, device in enumerate(devices):
        alone = plan_network(graph, [device], [chosen[i]], Costs([device], store))
        assert set(alone.planned.placement) == {0}
        assert seconds_alone(both, i) == pytest.approx(alone.plan.seconds)
        assert both.plan.seconds <= alone.plan.seconds


@pytest.mark.sampled(2)
def test_equal_workloads_may_read_one_value_or_two(tmp_path: Path, devices: list[Device], store: Store) -> None:
    net = Net()
    x = net.input(1, 16, 8, 8)
    y = net.op("Add", net.conv(x, (16, 16), 1), x)
    z = net.op("Add", net.conv(y, (16, 16), 1), x)
    z = net.op("Add", net.op("Tanh", z), net.op("Tanh", z))
    output = net.op("Add", z, y)
    graph = net.graph(tmp_path, output)
    found = plan_network(graph, devices, choices_of(graph, devices), Costs(devices, store, links=LINKS))
    assert [len(node.operands) for node in found.nodes][1:-1] == [1, 2, 1, 1, 2, 2]
    assert_runs(net, graph, devices, found, output)


@pytest.mark.night
def test_a_detector_is_planned_and_runs(tmp_path: Path, devices: list[Device], store: Store) -> None:
    net = Net()
    outputs = detector(net, 60, 3, 8, 0.5)
    graph = net.graph(tmp_path, *outputs)
    found = plan_network(graph, devices, choices_of(graph, devices), Costs(devices, store, links=LINKS))
    assert_runs(net, graph, devices, found, *outputs)


def test_slow_kernels_and_dear_copies_move_a_network(tmp_path: Path, devices: list[Device], store: Store) -> None:
    """The same network with times of our own making: to the fast device, or nowhere if copies cost more."""
    net, output = branches()
    graph = net.graph(tmp_path, output)
    chosen = choices_of(graph, devices)

    def timed(seconds: list[float]) -> list[dict[Workload, tuple[Choice, ...]]]:
        each = zip(chosen, seconds, strict=True)
        return [{w: (replace(c, seconds=s),) for w, (c,) in known.items()} for known, s in each]

    # No other function of the network takes as long as a copy, however busy the machine is that measures it.
    costs = Costs(devices, store, links=dict.fromkeys(LINKS, (1e-2, 2e-10)))
    assert set(plan_network(graph, devices, timed([1.0, 1e-9]), costs).planned.placement) == {1}
    mixed = plan_network(graph, devices, timed([1e-9, 1.0]), costs)
    anchors = [d for step, d in zip(graph.steps, mixed.planned.placement, strict=True) if step in graph.tuned]
    assert set(anchors) == {0}


@pytest.mark.sampled(2)
def test_the_layout_decides_between_kernels_of_equal_steps(tmp_path: Path, devices: list[Device], store: Store) -> None:
    """A convolution by itself in plain layout, the same one six times in a row in blocked layout: the kernel for that
    is faster, but not by what a single one's transforms take."""
    net = Net()
    x = net.op("Transpose", net.conv(net.input(1, 16, 24, 24), (16, 16), pads=[1, 1, 1, 1]), perm=[0, 1, 3, 2])
    for _ in range(6):
        x = net.conv(x, (16, 16), pads=[1, 1, 1, 1])
    graph = net.graph(tmp_path, x)
    gpu = devices[0]
    (workload,) = {s.workload for s in graph.tuned}
    configs = {}
    space = search_space(workload, gpu.target)
    assert space is not None
    for config in space.seed_configs():
        configs.setdefault(anchor_template(config.template).layouts(workload, gpu.target), config)
    blocked, plain = sorted(configs, key=lambda layouts: -layouts.data.block)
    costs = Costs(devices, store)
    ways = (PLAIN, blocked.data), (blocked.out, PLAIN)
    slower = max(costs.transform((1, 16, 24, 24), "float32", 0, *way).seconds for way in ways)
    choices = Choice(configs[blocked], "device", 1e-9), Choice(configs[plain], "device", slower)
    found = plan_network(graph, [gpu], [{workload: choices}], costs)
    templates = [found.planned.kernels[s.out].config for s in graph.tuned]
    assert templates == [configs[plain], *[configs[blocked]] * 6]
    assert_runs(net, graph, [gpu], found, x)


def test_rows_are_joined_in_blocks_but_not_in_place(tmp_path: Path, devices: list[Device], store: Store) -> None:
    net = Net()
    x = net.input(1, 16, 8, 8)
    out = net.op("Concat", net.conv(x, (16, 16), 1), net.conv(x, (16, 16), 1), axis=2)
    graph = net.graph(tmp_path, out)
    found = plan_network(graph, devices[1:], choices_of(graph, devices[1:]), Costs(devices[1:], store))
    (node,) = [node for node in found.nodes if len(node.operands) == 2]
    assert any(state.makes.layout.block for state in node.states)
    assert not any(state.saves for state in node.states)


def test_a_concatenation_costs_what_it_copies(tmp_path: Path, devices: list[Device], store: Store) -> None:
    """Of three parts of equal size two are written in place."""
    net = Net()
    x = net.input(1, 16, 24, 24)
    y, z = (net.conv(x, (16, 32), 1) for _ in range(2))
    out = net.op("Concat", y, net.op("MaxPool", net.conv(x, (16, 32), 1), kernel_shape=[1, 1]), z, axis=1)
    graph = net.graph(tmp_path, net.conv(out, (96, 16), 1))
    cpu = devices[1:]
    found = plan_network(graph, cpu, choices_of(graph, cpu), Costs(cpu, store))
    (at,) = [i for i, node in enumerate(found.nodes) if node.name.endswith("Concat")]
    state = found.nodes[at].states[found.plan.states[at]]
    assert state.makes.layout.block
    assert found.plan.computing[at] == pytest.approx(state.seconds / 3)
    assert_runs(net, graph, cpu, found, graph.model.outputs[0].name)
