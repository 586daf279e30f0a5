"""Measures the topology of the devices of this machine. Start at `measured_topology`.

Peaks are what our own kernels reach on the device now. Links are lines fitted to copies of several sizes between
kernels (`placement.transfer_timing`). Devices that run on the host's cores (the CPU, OpenCL runtimes for CPUs) share
one processor, which also makes their copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from board_agent.topology import memory_bytes
from tuner.devices import Device
from tuner.devices.roof import launch_seconds, roof_of
from tuner.devices.sharing import shares_cores, shares_memory
from tuner.errors import BadInput
from tuner.placement.kernel_timing import fitted_link
from tuner.placement.step_costs import COPIES
from tuner.placement.transfer_timing import ROUNDS, Crossings
from tuner.studies.topology.model import DeviceSpec, Link, Memory, Topology

HOST = "host"  # the name of the main memory, and of the cores of the host


@dataclass(frozen=True)
class Copies:
    """Holds the timed copies on a link, made between kernels: their sizes in bytes, and the seconds that they took.

    The seconds are first deciles, as they come close to those of an otherwise idle machine.
    """

    link: Link
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def error(self) -> float:
        """Return the largest relative deviation of the fitted line from what was measured."""
        each = zip(self.sizes, self.seconds, strict=True)
        return max(abs(self.link.seconds(size) - seconds) / seconds for size, seconds in each)


def measured_topology(
    name: str, devices: Sequence[Device], tell: Callable[[str], None] = lambda _: None
) -> tuple[Topology, tuple[Copies, ...]]:
    """Measure the topology, and return it with the copies that its links were fitted to.

    This takes seconds for each device, and more where a driver compiles kernels for the first time. `tell` is called
    with what is being measured.

    Raises BadInput for a board, as copies on it cannot be timed from this machine.
    """
    board = next((d for d in devices if d.kind.is_remote), None)
    if board is not None:
        raise BadInput(f"device {board.name}: a topology is measured on the machine that has the device: leave it out")
    specs = []
    for device in devices:
        tell(f"{device.title}: peaks")
        specs.append(_spec(device))
    copies = []
    for source in devices:
        for target in devices:
            if source is not target:
                tell(f"copies from {source.name} to {target.name}")
                copies.append(measured_link(source, target))
    memories = {_memory(device).name: _memory(device) for device in devices}
    links = tuple(found.link for found in copies)
    return Topology(name, tuple(specs), tuple(memories.values()), links), tuple(copies)


def measured_link(source: Device, target: Device, sizes: Sequence[int] = COPIES, rounds: int = ROUNDS) -> Copies:
    """Fit a line to copies from a kernel of one device to a kernel of another."""
    times = Crossings(source, target, sizes).seconds(rounds)
    seconds = tuple(sorted(times[size])[len(times[size]) // 10] for size in sizes)
    return Copies(link_of(source, target, sizes, seconds), tuple(sizes), seconds)


def link_of(source: Device, target: Device, sizes: Sequence[int], seconds: Sequence[float]) -> Link:
    """Fit a link from one device to another to the seconds of copies of some sizes. Devices that compute on the same
    cores make the copies there, too."""
    latency, rate = fitted_link(sizes, seconds)
    bus = HOST if shares_cores(source) and shares_cores(target) else ""
    return Link(source.name, target.name, 1 / rate if rate else math.inf, latency, bus)


def _spec(device: Device) -> DeviceSpec:
    roof, on_host = roof_of(device), shares_cores(device)
    return DeviceSpec(
        name=device.name,
        kind="cpu" if on_host else "gpu",
        flops=roof["flops"],
        bandwidth=roof["bytes_per_second"],
        memory=_memory(device).name,
        overhead=launch_seconds(device),
        cores=HOST if on_host else "",
    )


def _memory(device: Device) -> Memory:
    if shares_memory(device):
        return Memory(HOST, float(memory_bytes()))
    return Memory(device.name, math.inf if device.memory_bytes is None else float(device.memory_bytes))
