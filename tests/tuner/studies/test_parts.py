"""Strategies of networks that are built: the channels and rows of parts, where they are put together, files that a
person edits."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.tuner.graph.networks import Net
from tuner.devices import Device, open_device
from tuner.errors import BadInput
from tuner.graph import FusedGraph
from tuner.graph.fusion.half import halved
from tuner.graph.fusion.split import Share
from tuner.placement.fallback import CPU, GPU
from tuner.studies.baselines.whole import whole
from tuner.studies.estimated_network import network_of
from tuner.studies.mcmc import Options, search
from tuner.studies.networks import NetworkOperator
from tuner.studies.parts import (
    all_in_rows,
    built,
    built_of,
    configs_in_parts,
    fewer_parts,
    part_tasks,
    read_strategy_of,
    shares_of,
    whole_strategy,
    write_strategy_of,
)
from tuner.studies.simulator import Simulator
from tuner.studies.soap import PartConfig, Strategy, regions_of
from tuner.studies.soap.configs import needs_of
from tuner.studies.topology import DeviceSpec, Link, Memory, Topology

NAMES = ("opencl:0", "cpu")


@pytest.fixture(scope="module")
def devices() -> list[Device]:
    return [open_device(NAMES[0]), open_device(NAMES[1], 1)]


@pytest.fixture
def graph(tmp_path: Path) -> FusedGraph:
    """Convolutions of 64 channels, the third with a residual, a grouped one (6 groups of 4) and a softmax."""
    net = Net()
    x = net.conv(net.input(1, 8, 6, 7), (8, 64), 1)
    x = net.op("Add", net.conv(net.conv(x, (64, 64), 1), (64, 64), pads=[1, 1, 1, 1]), x)
    x = net.conv(net.conv(x, (64, 24), 1), (4, 24), group=6, pads=[1, 1, 1, 1])
    return net.graph(tmp_path, net.op("Softmax", x))


def channels(*devices: int) -> PartConfig:
    """A part of a convolution's channels for each."""
    return PartConfig((1, len(devices), 1, 1), devices)


def rows(*devices: int) -> PartConfig:
    return PartConfig((1, 1, len(devices), 1), devices)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("at", "devices_of_parts", "borders"),
    [
        (0, (GPU, CPU), [32, 64]),
        (0, (GPU, GPU, GPU, CPU), [48, 64]),
        (0, (GPU, CPU, CPU), [24, 64]),  # whole blocks of 8: not 21
        (3, (GPU, CPU), [12, 24]),
        (3, (GPU, CPU, GPU), [8, 16, 24]),
        (4, (GPU, CPU), [12, 24]),
        (4, (CPU, GPU, GPU, GPU), [8, 24]),  # between groups of 4
        (4, (GPU, GPU), [24]),
        (4, (GPU,) * 15 + (CPU,), [20, 24]),  # a group at least
        (4, (CPU,) + (GPU,) * 15, [4, 24]),
    ],
)
def test_channels_of_parts(graph: FusedGraph, at: int, devices_of_parts: tuple[int, ...], borders: list[int]) -> None:
    shares = shares_of(graph.anchors[at], channels(*devices_of_parts))
    assert [share.last for share in shares] == borders
    assert [share.first for share in shares] == [0, *borders[:-1]]


@pytest.mark.parametrize(
    ("devices_of_parts", "borders"),
    [((GPU, CPU), [3, 6]), ((GPU, GPU, GPU, CPU), [4, 6]), ((CPU, GPU, GPU, GPU, GPU), [1, 6]), ((GPU, CPU) * 3, None)],
)
def test_rows_of_parts(graph: FusedGraph, devices_of_parts: tuple[int, ...], borders: list[int] | None) -> None:
    shares = shares_of(graph.anchors[2], rows(*devices_of_parts))
    assert [share.last for share in shares] == (borders or [1, 2, 3, 4, 5, 6])
    assert [share.first for share in shares] == [0, *(share.last for share in shares[:-1])]
    assert all(share.rows for share in shares)


def test_parts_are_put_together_where_they_are_read(graph: FusedGraph) -> None:
    strategy = list(whole_strategy(graph, [GPU] * len(graph.steps)))
    strategy[0] = channels(CPU, CPU, CPU, GPU)  # read by the GPU
    strategy[4] = channels(GPU, CPU, CPU)  # by the softmax, there too
    split = built(graph, tuple(strategy), CPU)
    placed = {step.out: device for step, device in zip(split.graph.steps, split.placement, strict=True)}
    assert [placed[step.out] for step in graph.steps] == [GPU] * len(graph.steps)
    strategy[1] = channels(CPU, CPU, CPU, GPU)  # most of it on the CPU, and so is what it reads
    split = built(graph, tuple(strategy), CPU)
    placed = {step.out: device for step, device in zip(split.graph.steps, split.placement, strict=True)}
    assert placed[graph.steps[0].out] == CPU
    assert shares_of(graph.anchors[0], strategy[0]) == [Share(0, 48, CPU), Share(48, 64, GPU)]


def test_what_a_search_proposes() -> None:
    specs = tuple(DeviceSpec(n, n, 1.0, 1.0, n) for n in NAMES)
    links = tuple(Link(a, b, 1.0) for a, b in (NAMES, NAMES[::-1]))
    topology = Topology("here", specs, tuple(Memory(n) for n in NAMES), links)
    whole = [PartConfig((1,), (GPU,)), PartConfig((1,), (CPU,))]
    parts = [(GPU, CPU), (GPU, CPU, CPU), (GPU, GPU, CPU), (GPU, CPU, CPU, CPU), (GPU, GPU, GPU, CPU)]
    found = configs_in_parts(NetworkOperator("c", "conv2d", (64,), "p"), topology)
    assert list(found) == [*whole, *(PartConfig((len(p),), p) for p in parts)]
    assert list(configs_in_parts(NetworkOperator("s", "nn.softmax", (64,), "-"), topology)) == whole
    image = configs_in_parts(NetworkOperator("c", "conv2d", (1, 64, 7, 7), "spa-", weights=4.0), topology)
    assert image[:2] == tuple(PartConfig((1,) * 4, (device,)) for device in (GPU, CPU))
    assert image[2:] == (*(channels(*p) for p in parts), *(rows(*p) for p in parts))
    few = configs_in_parts(NetworkOperator("c", "conv2d", (1, 2, 3, 7), "spa-", weights=4.0), topology, 8)
    assert few == (*image[:2], channels(GPU, CPU), *(rows(*p) for p in parts[:3]))
    pool = configs_in_parts(NetworkOperator("m", "pool", (1, 64, 7, 7), "saa-"), topology)  # it is not built in parts
    assert pool == image[:2]


def test_parts_that_do_not_pay_are_put_together() -> None:
    """Of three steps in parts the first pays, the second is better on the CPU, the third costs a little more split."""
    halves, gpu, cpu = PartConfig((1, 2), (GPU, CPU)), PartConfig((1, 1), (GPU,)), PartConfig((1, 1), (CPU,))
    takes = [{halves: 1.0, gpu: 2.0, cpu: 3.0}, {halves: 3.0, gpu: 2.5, cpu: 2.0}, {halves: 2.1, gpu: 2.0, cpu: 3.0}]

    def seconds(strategy: Strategy) -> float:
        return sum(table[config] for table, config in zip(takes, strategy, strict=True))

    assert fewer_parts((halves, halves, halves), seconds) == ((halves, cpu, gpu), 5.0)
    assert fewer_parts((halves,) * 3, seconds, lambda: False) == ((halves,) * 3, 6.1)


def test_only_what_can_be_split_has_axes_and_residuals_share_them(graph: FusedGraph) -> None:
    network, works = network_of(graph)
    assert [o.axes for o in network.operators] == ["-pa-"] * 5 + ["----"]
    assert [o.shape for o in network.operators] == [(1, 64, 6, 7)] * 3 + [(1, 24, 6, 7)] * 3
    read = [[tuple(each.dim for each in reads) for reads in o.reads] for o in network.operators]
    data = (-1, -1, 2, -1)
    assert read == [[], [data], [data, (0, 1, 2, 3)], [data], [(-1, 1, 2, -1)], [(-1,) * 4]]
    assert set(works) == {o.name for o in network.operators}


@pytest.mark.sampled(2)
def test_the_simulator_knows_the_rows_that_parts_read(tmp_path: Path) -> None:
    """As many as are cut out where these are built, for any kernel, stride, dilation and padding."""
    for kernel, stride, dilation, pads in product((1, 3, 5), (1, 2, 3), (1, 2), ((0, 0), (1, 0), (0, 2))):
        net = Net()
        x = net.conv(net.input(1, 8, 20, 7), (8, 16), 1)
        geometry = {"strides": [stride, 1], "dilations": [dilation, 1], "pads": [pads[0], 0, pads[1], 0]}
        graph = net.graph(tmp_path, net.conv(x, (16, 8), (kernel, 1), **geometry))
        network, _ = network_of(graph)
        operator, (first, _) = network.operators[1], network.operators
        if operator.axes != "-pa-":
            assert pads[0] >= kernel or pads[1] >= kernel  # rows of padding alone
            continue
        config = rows(GPU, CPU, GPU)
        needs = needs_of(operator, 0, regions_of(operator.shape, config.degrees), first.shape)
        split = built(graph, (whole(first, CPU), config), CPU)
        heights = [step.workload.attrs["height"] for step in split.graph.anchors[1:]]
        assert [high - low for low, high in needs[[0, 2, 1], 2]] == heights  # the CPU's part is the last


def test_halves_are_half_as_many_bytes(graph: FusedGraph) -> None:
    network, _ = network_of(halved(graph))
    assert network.operators[1].shape == (1, 64, 6, 3)  # behind the conversion of the input


def test_rows_are_searched_where_what_is_copied_counts(tmp_path: Path) -> None:
    """Devices alike, and a link on which half of a value takes longer than half of a convolution: no step is worth
    being split alone, all are by rows, also as they are built."""
    net = Net()
    x = net.input(1, 4, 56, 56)
    for read, made in pairwise((4, 64, 64, 64, 4)):
        x = net.op("Relu", net.conv(x, (read, made), pads=[1, 1, 1, 1]))
    graph = net.graph(tmp_path, x)
    specs = tuple(DeviceSpec(n, n, 1e11, 1e10, n) for n in NAMES)
    links = tuple(Link(a, b, 1e8, 1e-6) for a, b in (NAMES, NAMES[::-1]))
    topology = Topology("here", specs, tuple(Memory(n) for n in NAMES), links)
    network, _ = network_of(graph)
    alone = whole_strategy(graph, [GPU] * 4)
    simulator = Simulator(network, topology)
    stuck = search(simulator, {"alone": alone}, Random(0), options=Options(proposals=500, configs=configs_in_parts))
    assert stuck.strategy == alone
    starts = {"alone": alone, "rows": all_in_rows(simulator, alone)}
    found = search(simulator, starts, Random(0), options=Options(proposals=500, configs=configs_in_parts))
    assert found.seconds < 0.6 * stuck.seconds
    assert all(config.degrees[2] > 1 for config in found.strategy[:3])
    split = built(graph, found.strategy, CPU)
    parts, _ = network_of(split.graph)
    each = zip(parts.operators, split.placement, strict=True)
    took = Simulator(parts, topology).start(tuple(whole(o, d) for o, d in each))
    assert took < 0.75 * stuck.seconds


def test_a_file_is_read_as_it_was_written(graph: FusedGraph, devices: list[Device], tmp_path: Path) -> None:
    strategy = (rows(GPU, CPU), channels(CPU, GPU), *whole_strategy(graph, [GPU, CPU] * 3)[2 : len(graph.steps)])
    write_strategy_of(tmp_path / "p.json", graph, devices, strategy)
    assert read_strategy_of(tmp_path / "p.json", graph, devices) == strategy


def test_the_parts_of_a_device_are_tasks_of_it(graph: FusedGraph, devices: list[Device], tmp_path: Path) -> None:
    strategy = list(whole_strategy(graph, [GPU] * len(graph.steps)))
    strategy[0], strategy[1], strategy[2] = channels(GPU, GPU, GPU, CPU), channels(GPU, CPU), rows(GPU, CPU, CPU)
    write_strategy_of(tmp_path / "p.json", graph, devices, tuple(strategy))
    for device, made, height in (("opencl:0", [48, 32, 64], 3), ("cpu", [16, 32, 64], 5)):
        tasks = part_tasks(tmp_path / "p.json", graph, device)
        assert [task.workload.attrs["out_channels"] for task in tasks] == made
        assert tasks[2].workload.attrs["height"] == height
    with pytest.raises(BadInput, match="gives nothing to opencl:1: it has opencl:0, cpu"):
        part_tasks(tmp_path / "p.json", graph, "opencl:1")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("step", "said", "says"),
    [
        (0, {"split": {"columns": 2}, "devices": ["cpu"] * 2}, "cannot be split along 'columns': give channels, rows"),
        (0, {"split": {"rows": 7}, "devices": ["cpu"] * 7}, "rows can be cut into 1 to 6 parts, not 7"),
        (5, {"split": {"rows": 2}, "devices": ["cpu", "cpu"]}, "cannot be split along 'rows'"),
        (5, {"split": {"channels": 2}, "devices": ["cpu", "cpu"]}, "cannot be split along 'channels'"),
        (0, {"split": {"channels": 2}, "devices": ["cpu"]}, "2 parts need as many devices, not 1"),
        (0, {"devices": ["cuda:0"]}, "unknown device 'cuda:0': opencl:0,cpu has opencl:0, cpu"),
    ],
)
def test_a_file_that_cannot_be_used(
    graph: FusedGraph, devices: list[Device], tmp_path: Path, step: int, said: dict[str, Any], says: str
) -> None:
    path = tmp_path / "p.json"
    write_strategy_of(path, graph, devices, whole_strategy(graph, [GPU] * len(graph.steps)))
    data = json.loads(path.read_text())
    name = list(data["operators"])[step]
    data["operators"][name] = said
    path.write_text(json.dumps(data))
    with pytest.raises(BadInput) as caught:
        read_strategy_of(path, graph, devices)
    assert str(caught.value) == f"{path}: operator {name!r}: {says}"


def test_a_file_that_does_not_fit(graph: FusedGraph, devices: list[Device]) -> None:
    strategy = list(whole_strategy(graph, [GPU] * len(graph.steps)))
    small = [replace(devices[0], memory_bytes=1 << 17), devices[1]]
    with pytest.raises(BadInput, match=r"p.json: needs 0\.\d\d MiB of opencl:0, which has 0\.12: give the CPU more"):
        built_of(Path("p.json"), graph, small, tuple(strategy))
    strategy[2] = channels(GPU, CPU, CPU, CPU)  # most of the weights
    assert built_of(Path("p.json"), graph, small, tuple(strategy)).whole
    strategy[4] = channels(*(GPU, CPU) * 4)  # of 6 groups
    with pytest.raises(BadInput, match=r"p\.json: node .* a part without output channels: split it into fewer parts"):
        built_of(Path("p.json"), graph, small, tuple(strategy))
    strategy[4] = PartConfig((1, 2, 2, 1), (GPU, CPU) * 2)
    with pytest.raises(BadInput, match=r"p\.json: node .*: split it along channels or along rows, not both"):
        built_of(Path("p.json"), graph, devices, tuple(strategy))
