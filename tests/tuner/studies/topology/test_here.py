"""The topology of the devices that are here: a real OpenCL device and the CPU, which share their cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tuner.devices import Device, open_device
from tuner.devices.sharing import shares_cores, shares_memory
from tuner.errors import BadInput
from tuner.placement.kernel_timing import time_copy
from tuner.studies.networks import network
from tuner.studies.simulator import Simulator
from tuner.studies.soap import PartConfig
from tuner.studies.topology import Topology, as_toml, read_topology
from tuner.studies.topology.here import HOST, Copies, measured_link, measured_topology

Found = tuple[Topology, tuple[Copies, ...]]


@pytest.fixture(scope="module")
def devices() -> list[Device]:
    return [open_device("opencl:0"), open_device("cpu", 1)]


@pytest.fixture(scope="module")
def found(devices: list[Device]) -> Found:
    return measured_topology("here", devices)


@pytest.mark.night
def test_what_is_measured_is_whole_and_reads_back_equal(found: Found, tmp_path: Path) -> None:
    topology, copies = found
    assert [d.name for d in topology.devices] == ["opencl:0", "cpu"]
    assert tuple(c.link for c in copies) == topology.links
    assert {(k.source, k.target) for k in topology.links} == {("opencl:0", "cpu"), ("cpu", "opencl:0")}
    assert all(1e8 < d.flops < 1e14 and 1e8 < d.bandwidth < 1e13 and 0 < d.overhead < 1e-2 for d in topology.devices)
    path = tmp_path / "here.toml"
    path.write_text(as_toml(topology), encoding="utf-8")
    assert read_topology(path) == topology


@pytest.mark.sampled(4)
def test_a_cpu_runtime_shares_cores_and_memory_with_the_cpu(found: Found, devices: list[Device]) -> None:
    if not shares_cores(devices[0]):
        pytest.skip("opencl:0 is a GPU")
    topology, _ = found
    assert topology.processors == (HOST,) == topology.lanes  # its cores make the copies too
    assert [m.name for m in topology.memories] == [HOST]
    assert 0 < topology.memories[0].bytes <= psutil.virtual_memory().total
    assert all(shares_memory(d) for d in devices)
    net = network("lenet")
    both = tuple(PartConfig((1,) * len(o.shape), (i % 2,)) for i, o in enumerate(net.operators))
    simulator = Simulator(net, topology)
    seconds = simulator.start(both)
    assert sum(simulator.timeline().busy().values()) == pytest.approx(seconds)  # nothing overlaps


def test_a_line_tells_what_a_copy_takes(found: Found, devices: list[Device]) -> None:
    """Of another size than those that it was fitted to, within what a busy machine may add."""
    for copies in found[1]:
        source, target = (next(d for d in devices if d.name == n) for n in (copies.link.source, copies.link.target))
        for size in (1 << 14, 3 << 20):
            took = min(time_copy(source, target, size))
            assert 0.1 * took < copies.link.seconds(size)
    assert all(min(c.seconds) > 0 for c in found[1])


def test_the_error_is_the_worst_of_all_sizes(devices: list[Device]) -> None:
    copies = measured_link(devices[1], devices[0], sizes=(1 << 12, 1 << 20, 1 << 22), rounds=2)
    assert copies.sizes == (1 << 12, 1 << 20, 1 << 22)
    away = [abs(copies.link.seconds(n) / t - 1) for n, t in zip(copies.sizes, copies.seconds, strict=True)]
    assert copies.error == pytest.approx(max(away))


def test_a_board_is_refused(devices: list[Device]) -> None:
    with pytest.raises(BadInput, match="board:pi: a topology is measured on the machine"):
        measured_topology("here", [replace(devices[1], name="board:pi")])
