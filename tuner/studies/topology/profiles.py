"""Topologies that are known by name. Start at `profile`.

Peaks are from data sheets; the share that kernels reach is up to the cost model (`simulator.costs`). The two clusters
with P100 and K80 are those of Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks",
section 8.1. `k80-cpu` is the machine of Mirhoseini et al., "Device Placement Optimization with Reinforcement Learning".

- P100 (SXM2) has 10.6 Tflop/s, 732 GB/s and 16 GB. Every pair of a node's four shares one NVLink, 20 GB/s each way.
- K80 is two GK210 of 4.1 Tflop/s (boost), 240 GB/s and 12 GB each. PCI-e 3 x16 moves about 12 GB/s.
- Infiniband: Jia et al. print "100GB/s EDR" and "56 GB/s EDR". EDR has 100 Gbit/s, and 56 Gbit/s is FDR, so it is 12.5
  and 7 GB/s here.
- Haswell (Mirhoseini et al.) has 18 cores at 2.3 GHz, 32 flop a cycle, and 68 GB/s. The paper reports no limit of its
  memory.
- DeepLens has an Intel Atom x5-E3930 (2 cores at 1.8 GHz, 8 flop a cycle) and 18 EUs with 16 flop a cycle at 550 MHz,
  with 25.6 GB/s for both.
- aiSage (RK3399) has a Mali-T860 MP4 at 800 MHz, 34 flop a cycle and core. Its 2 A72 run at 1.8 and its 4 A53 at 1.4
  GHz, 8 flop a cycle. It has 12.8 GB/s.
- Jetson Nano has 128 lanes at 921 MHz and 4 A57 at 1.43 GHz, 8 flop a cycle, with 25.6 GB/s and 4 GB.

On a shared memory nothing is moved. What remains is the flush of the queue and the event, 20 microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from tuner.errors import BadInput
from tuner.studies.topology.model import DeviceSpec, Link, Memory, Topology

_LAUNCH = 5e-6  # seconds of a kernel's launch on a GPU
_WAKE = 2e-6  # seconds to start a parallel loop on a CPU
_SHARED = 20e-6
_NVLINK, _PCIE = (20e9, 2e-6), (12e9, 5e-6)


def profile(text: str) -> Topology:
    """Return a profile by its name; "p100:16" has 16 GPUs. Raises BadInput, naming the known ones, for any other
    text."""
    name, _, count = text.lower().partition(":")
    if name not in PROFILES:
        raise BadInput(f"unknown topology {text!r}: give a .toml file or one of {', '.join(PROFILES)}")
    if not count:
        return PROFILES[name](None)
    if name not in _COUNTED:
        raise BadInput(f"topology {text!r}: {name} has no number of GPUs to give")
    if not count.isascii() or not count.isdecimal() or not 1 <= int(count) <= 1024:
        raise BadInput(f"topology {text!r}: the number of GPUs must be from 1 to 1024")
    return PROFILES[name](int(count))


def cluster(
    name: str, gpu: DeviceSpec, count: int, *, memory: float, near: Callable[[int, int], Link], far: Link
) -> Topology:
    """Return a cluster of `count` GPUs, four to a node. `near` returns the link between two GPUs of a node; `far` is
    the link between nodes.

    What a node sends to others goes through its one adapter, one transfer at a time. A link has only one bus, so
    several nodes may send to one node at the same time, each as fast as its own adapter.
    """
    names = [f"gpu{i}" for i in range(count)]
    devices = tuple(DeviceSpec(n, "gpu", gpu.flops, gpu.bandwidth, n, gpu.overhead) for n in names)
    links = []
    for i in range(count):
        for j in range(count):
            if i // 4 == j // 4 and i != j:
                found = near(i, j)
                bus = f"node{i // 4} {found.bus}" if found.bus else ""
                links.append(Link(names[i], names[j], found.bandwidth, found.latency, bus))
            elif i != j:
                links.append(Link(names[i], names[j], far.bandwidth, far.latency, f"node{i // 4} adapter"))
    return Topology(name, devices, tuple(Memory(n, memory) for n in names), tuple(links))


def _p100(count: int | None) -> Topology:
    gpu = DeviceSpec("", "gpu", 10.6e12, 732e9, "", _LAUNCH)
    total = count or 4
    return cluster(
        f"p100:{total}", gpu, total, memory=16e9, near=lambda *_: Link("", "", *_NVLINK), far=Link("", "", 12.5e9, 5e-6)
    )


def _k80(count: int | None) -> Topology:
    gpu = DeviceSpec("", "gpu", 4.1e12, 240e9, "", _LAUNCH)
    total = count or 64
    return cluster(f"k80:{total}", gpu, total, memory=12e9, near=_k80_near, far=Link("", "", 7e9, 8e-6))


def _k80_near(i: int, j: int) -> Link:
    """Return the link between two GPUs of a node: neighbours have a switch of their own, the others share one with the
    CPU (Jia et al., figure 6b)."""
    return Link("", "", *_PCIE) if i // 2 == j // 2 else Link("", "", *_PCIE, "switch")


def _haswell(count: int | None) -> Topology:
    """Return the machine of Mirhoseini et al., section 4.1: a CPU with 2 or 4 K80."""
    total = count or 4
    gpus = _k80(total)
    cpu = DeviceSpec("cpu", "cpu", 18 * 2.3e9 * 32, 68e9, "cpu", _WAKE)
    copies = [(a, b) for gpu in gpus.devices for a, b in (("cpu", gpu.name), (gpu.name, "cpu"))]
    links = [Link(a, b, *_PCIE, f"{'from' if a == 'cpu' else 'to'} cpu") for a, b in copies]
    memories = (Memory("cpu", math.inf), *gpus.memories)
    return Topology(f"k80-cpu:{total}", (cpu, *gpus.devices), memories, (*links, *gpus.links))


def _soc(name: str, gpu: float, cpu: float, bandwidth: float, memory: float, _: int | None) -> Topology:
    devices = (
        DeviceSpec("gpu", "gpu", gpu, bandwidth, "ram", 2 * _LAUNCH),
        DeviceSpec("cpu", "cpu", cpu, bandwidth, "ram", _WAKE),
    )
    links = tuple(Link(a, b, math.inf, _SHARED) for a, b in (("gpu", "cpu"), ("cpu", "gpu")))
    return Topology(name, devices, (Memory("ram", memory),), links)


PROFILES: dict[str, Callable[[int | None], Topology]] = {
    "deeplens": partial(_soc, "deeplens", 18 * 16 * 550e6, 2 * 1.8e9 * 8, 25.6e9, 8e9),
    "aisage": partial(_soc, "aisage", 4 * 34 * 800e6, (2 * 1.8e9 + 4 * 1.4e9) * 8, 12.8e9, 2e9),
    "jetson-nano": partial(_soc, "jetson-nano", 128 * 2 * 921e6, 4 * 1.43e9 * 8, 25.6e9, 4e9),
    "p100": _p100,
    "k80": _k80,
    "k80-cpu": _haswell,
}
_COUNTED = ("p100", "k80", "k80-cpu")
