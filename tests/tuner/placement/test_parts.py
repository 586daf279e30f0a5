"""Strategies of networks that are built: the channels of parts, where they are put together, files that a person
edits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.graph.networks import Net
from tuner.devices import Device, open_device
from tuner.errors import BadInput
from tuner.graph import FusedGraph
from tuner.graph.split import Share
from tuner.placement.estimated import network_of
from tuner.placement.fallback import CPU, GPU
from tuner.placement.networks import Operator
from tuner.placement.parts import (
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
from tuner.placement.soap import Config, Strategy
from tuner.placement.topology import DeviceSpec, Link, Memory, Topology

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
    ],
)
def test_channels_of_parts(graph: FusedGraph, at: int, devices_of_parts: tuple[int, ...], borders: list[int]) -> None:
    shares = shares_of(graph.anchors[at], Config((len(devices_of_parts),), devices_of_parts))
    assert [share.last for share in shares] == borders
    assert [share.first for share in shares] == [0, *borders[:-1]]


def test_parts_are_put_together_where_they_are_read(graph: FusedGraph) -> None:
    strategy = list(whole_strategy(graph, [GPU] * len(graph.steps)))
    strategy[0] = Config((4,), (CPU, CPU, CPU, GPU))  # read by the GPU
    strategy[4] = Config((3,), (GPU, CPU, CPU))  # by the softmax, there too
    split = built(graph, tuple(strategy), CPU)
    placed = {step.out: device for step, device in zip(split.graph.steps, split.placement, strict=True)}
    assert [placed[step.out] for step in graph.steps] == [GPU] * len(graph.steps)
    strategy[1] = Config((4,), (CPU, CPU, CPU, GPU))  # most of it on the CPU, and so is what it reads
    split = built(graph, tuple(strategy), CPU)
    placed = {step.out: device for step, device in zip(split.graph.steps, split.placement, strict=True)}
    assert placed[graph.steps[0].out] == CPU
    assert shares_of(graph.anchors[0], strategy[0]) == [Share(0, 48, CPU), Share(48, 64, GPU)]


def test_what_a_search_proposes() -> None:
    specs = tuple(DeviceSpec(n, n, 1.0, 1.0, n) for n in NAMES)
    links = tuple(Link(a, b, 1.0) for a, b in (NAMES, NAMES[::-1]))
    topology = Topology("here", specs, tuple(Memory(n) for n in NAMES), links)
    whole = [Config((1,), (GPU,)), Config((1,), (CPU,))]
    parts = [(GPU, CPU), (GPU, CPU, CPU), (GPU, GPU, CPU), (GPU, CPU, CPU, CPU), (GPU, GPU, GPU, CPU)]
    found = configs_in_parts(Operator("c", "conv2d", (64,), "p"), topology)
    assert list(found) == [*whole, *(Config((len(p),), p) for p in parts)]
    assert list(configs_in_parts(Operator("s", "nn.softmax", (64,), "-"), topology)) == whole
    image = configs_in_parts(Operator("c", "conv2d", (1, 64, 7, 7), "spa-"), topology)
    assert image == tuple(Config((1, *c.degrees, 1, 1), c.devices) for c in found)
    few = configs_in_parts(Operator("c", "conv2d", (1, 2, 7, 7), "spa-"), topology, 8)
    assert few == (*image[:2], Config((1, 2, 1, 1), (GPU, CPU)))


def test_parts_that_do_not_pay_are_put_together() -> None:
    """Of three steps in parts the first pays, the second is better on the CPU, the third costs a little more split."""
    halves, gpu, cpu = Config((1, 2), (GPU, CPU)), Config((1, 1), (GPU,)), Config((1, 1), (CPU,))
    takes = [{halves: 1.0, gpu: 2.0, cpu: 3.0}, {halves: 3.0, gpu: 2.5, cpu: 2.0}, {halves: 2.1, gpu: 2.0, cpu: 3.0}]

    def seconds(strategy: Strategy) -> float:
        return sum(table[config] for table, config in zip(takes, strategy, strict=True))

    assert fewer_parts((halves, halves, halves), seconds) == ((halves, cpu, gpu), 5.0)
    assert fewer_parts((halves,) * 3, seconds, lambda: False) == ((halves,) * 3, 6.1)


def test_only_what_can_be_split_has_channels_and_residuals_share_them(graph: FusedGraph) -> None:
    network, works = network_of(graph)
    assert [o.axes for o in network.operators] == ["p"] * 5 + ["-"]
    assert [[read.dim for (read,) in o.reads] for o in network.operators] == [[], [-1], [-1, 0], [-1], [-1], [-1]]
    assert set(works) == {o.name for o in network.operators}


def test_a_file_is_read_as_it_was_written(graph: FusedGraph, devices: list[Device], tmp_path: Path) -> None:
    strategy = (Config((2,), (GPU, CPU)), *whole_strategy(graph, [GPU, CPU] * 3)[1 : len(graph.steps)])
    write_strategy_of(tmp_path / "p.json", graph, devices, strategy)
    assert read_strategy_of(tmp_path / "p.json", graph, devices) == strategy


def test_the_parts_of_a_device_are_tasks_of_it(graph: FusedGraph, devices: list[Device], tmp_path: Path) -> None:
    strategy = list(whole_strategy(graph, [GPU] * len(graph.steps)))
    strategy[0], strategy[1] = Config((4,), (GPU, GPU, GPU, CPU)), Config((2,), (GPU, CPU))
    write_strategy_of(tmp_path / "p.json", graph, devices, tuple(strategy))
    for device, channels in (("opencl:0", [48, 32]), ("cpu", [16, 32])):
        tasks = part_tasks(tmp_path / "p.json", graph, device)
        assert [task.workload.attrs["out_channels"] for task in tasks] == channels
    with pytest.raises(BadInput, match="gives nothing to opencl:1: it has opencl:0, cpu"):
        part_tasks(tmp_path / "p.json", graph, "opencl:1")


@pytest.mark.parametrize(
    ("step", "said", "says"),
    [
        (0, {"split": {"rows": 2}, "devices": ["cpu", "cpu"]}, "cannot be split along 'rows': give channels"),
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
    strategy[2] = Config((4,), (GPU, CPU, CPU, CPU))  # most of the weights
    assert built_of(Path("p.json"), graph, small, tuple(strategy)).whole
    strategy[4] = Config((8,), (GPU, CPU) * 4)  # of 6 groups
    with pytest.raises(BadInput, match=r"p\.json: node .* a part without output channels: split it into fewer parts"):
        built_of(Path("p.json"), graph, small, tuple(strategy))
