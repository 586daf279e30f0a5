"""Which placements fit into the memories of a topology, and what is said where none does."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.tuner.graph.networks import Net
from tuner.devices import Device, open_device
from tuner.errors import BadInput
from tuner.graph import FusedGraph
from tuner.placement.fallback import CPU, GPU
from tuner.placement.memory import memory_on
from tuner.studies.memory_check import Limits
from tuner.studies.topology import DeviceSpec, Link, Memory, Topology

NAMES = ("opencl:0", "cpu")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> FusedGraph:
    net = Net()
    x = net.input(1, 4, 16, 16)
    for _ in range(3):
        x = net.op("Relu", net.conv(x, (4, 4), 1))
    return net.graph(tmp_path_factory.mktemp("memories"), x)


@pytest.fixture(scope="module")
def gpu() -> Device:
    return open_device(NAMES[GPU])


def topology(*sizes: float) -> Topology:
    """A memory for both devices, or one for each."""
    memories = tuple(Memory(f"m{i}", size) for i, size in enumerate(sizes))
    specs = tuple(DeviceSpec(n, n, 1e11, 1e10, memories[i % len(sizes)].name) for i, n in enumerate(NAMES))
    return Topology("here.toml", specs, memories, tuple(Link(a, b, 1e10) for a, b in (NAMES, NAMES[::-1])))


def test_each_memory_has_to_hold_what_its_devices_need_together(graph: FusedGraph, gpu: Device) -> None:
    both = [GPU, CPU, GPU]
    needs = [memory_on(graph, both, d) for d in (GPU, CPU)]
    for sizes, hold in (
        (needs, True),
        ((needs[0], needs[1] - 1), False),
        ((needs[0] - 1, needs[1]), False),
        ((sum(needs),), True),
        ((sum(needs) - 1,), False),
        ((max(needs),), False),
    ):
        assert Limits.of(topology(*sizes), gpu).hold(graph, both) == hold


def test_a_gpu_may_have_the_less_of_what_it_has_and_what_is_said(graph: FusedGraph, gpu: Device) -> None:
    on_gpu = [GPU] * len(graph.steps)
    needs = memory_on(graph, on_gpu, GPU)
    for device, said in ((None, needs), (needs, math.inf), (needs + 1, needs)):
        assert Limits.of(topology(said, math.inf), replace(gpu, memory_bytes=device)).kept(graph, on_gpu) == on_gpu
    for device, said in ((None, needs - 1), (needs - 1, math.inf), (needs, needs - 1)):
        kept = Limits.of(topology(said, math.inf), replace(gpu, memory_bytes=device)).kept(graph, on_gpu)
        assert kept[-1] == CPU


def test_what_is_told_names_the_memory_and_what_is_needed_of_it(graph: FusedGraph, gpu: Device) -> None:
    on_gpu = [GPU] * len(graph.steps)
    needs = memory_on(graph, on_gpu, GPU)
    Limits.of(topology(needs), gpu).check(graph, on_gpu)
    with pytest.raises(BadInput, match=rf"here.toml: memory 'm0' has {needs - 1} bytes, the network needs {needs}: "):
        Limits.of(topology(needs - 1), gpu).check(graph, on_gpu)
    with pytest.raises(BadInput, match=r"here.toml: memory 'm1' has 5 bytes, the network needs "):
        Limits.of(topology(5, 5), gpu).check(graph, on_gpu)
    lone = Limits.of(topology(math.inf, math.inf), replace(gpu, memory_bytes=9))
    assert str(lone.refusal(graph, on_gpu)).startswith("here.toml: the GPU may have 9 bytes, and the CPU lacks ")
