"""The topology of the devices that are here, measured. Start at `measured_topology`.

Peaks are what kernels of ours reach on the device now, links are lines through copies of several sizes between kernels
(`crossing`). What runs on the host's cores (the CPU, OpenCL runtimes for CPUs) shares one processor, on which its
copies are made too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from board_agent.topology import memory_bytes
from tuner.devices import Device, is_board
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
    """Of copies on a link, between kernels, their sizes in bytes and what they took, in seconds: first deciles, as they
    are where the machine does nothing else."""

    link: Link
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def error(self) -> float:
        """The largest share by which the line is away from what was measured."""
        each = zip(self.sizes, self.seconds, strict=True)
        return max(abs(self.link.seconds(size) - seconds) / seconds for size, seconds in each)


def measured_topology(
    name: str, devices: Sequence[Device], tell: Callable[[str], None] = lambda _: None
) -> tuple[Topology, tuple[Copies, ...]]:
    """The topology, and the copies that its links were fitted to. Takes seconds for each device, and more where its
    driver compiles kernels for the first time; `tell` is told what is measured.

    Raises BadInput for a board, whose copies nobody here can time.
    """
    board = next((d for d in devices if is_board(d.name)), None)
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
    """The line through copies from a kernel of one device to one of another."""
    times = Crossings(source, target, sizes).seconds(rounds)
    seconds = tuple(sorted(times[size])[len(times[size]) // 10] for size in sizes)
    latency, rate = fitted_link(sizes, seconds)
    bus = HOST if shares_cores(source) and shares_cores(target) else ""
    link = Link(source.name, target.name, 1 / rate if rate else math.inf, latency, bus)
    return Copies(link, tuple(sizes), seconds)


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
