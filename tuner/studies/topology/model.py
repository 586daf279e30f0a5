"""Devices and links as the simulator sees them (Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for Deep
Neural Networks", sections 3.1 and 5). Start at `Topology`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tuner.errors import BadInput


@dataclass(frozen=True)
class Memory:
    """A memory that has `bytes` bytes, infinitely many if that is unknown."""

    name: str
    bytes: float = math.inf


@dataclass(frozen=True)
class DeviceSpec:
    """A device as the simulator sees it.

    - `flops` is the flop per second that kernels reach at best, `bandwidth` the bytes per second of its memory.
    - `overhead` is the seconds that every task takes in addition.
    - `memory` is the name of the memory that it uses, which other devices may use too.
    - `lacks` holds the kinds of operators that it cannot compute.
    - `cores` is the name of what computes; empty means cores of its own. Devices on the same cores do not work at the
      same time.
    """

    name: str
    kind: str
    flops: float
    bandwidth: float
    memory: str
    overhead: float = 0.0
    lacks: frozenset[str] = frozenset()
    cores: str = ""

    @property
    def processor(self) -> str:
        """Return the name of the cores that the device computes on."""
        return self.cores or self.name


@dataclass(frozen=True)
class Link:
    """A connection that carries data in one direction, where `bandwidth` is in bytes per second and `latency` in
    seconds.

    An infinite bandwidth means that the memory is shared and nothing is moved. Links with the same `bus` carry one
    transfer at a time among them. If the bus is the name of a processor, that processor makes the copies itself and
    does not compute meanwhile.
    """

    source: str
    target: str
    bandwidth: float
    latency: float = 0.0
    bus: str = ""

    def seconds(self, size: int) -> float:
        """Return the seconds of a transfer of `size` bytes (Jia et al., assumption A2, with a latency)."""
        return self.latency + size / self.bandwidth


@dataclass(frozen=True)
class Topology:
    """Devices, their memories, and a link in both directions between every pair of devices. Raises BadInput, in one
    line that says what is wrong and where, for whatever does not fit together."""

    name: str
    devices: tuple[DeviceSpec, ...]
    memories: tuple[Memory, ...]
    links: tuple[Link, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.devices:
            raise BadInput(f"{self.name}: no devices: give at least one [[device]]")
        _unique(self.name, "device", [d.name for d in self.devices])
        _unique(self.name, "memory", [m.name for m in self.memories])
        for device in self.devices:
            self._check_device(device)
        for memory in self.memories:
            if not memory.bytes > 0:
                raise BadInput(f"{self.name}: memory {memory.name!r}: bytes must be above 0, not {memory.bytes:g}")
        for link in self.links:
            self._check_link(link)
        for one in self.devices:
            for other in self.devices:
                if one is not other and (one.name, other.name) not in self._links:
                    raise BadInput(f"{self.name}: no link from {one.name!r} to {other.name!r}: add a [[link]]")

    def _check_device(self, device: DeviceSpec) -> None:
        where = f"{self.name}: device {device.name!r}"
        for what, value in (("flops", device.flops), ("bandwidth", device.bandwidth)):
            if not (value > 0 and math.isfinite(value)):
                raise BadInput(f"{where}: {what} must be a number above 0, not {value:g}")
        if not (device.overhead >= 0 and math.isfinite(device.overhead)):
            raise BadInput(f"{where}: overhead must be 0 or more seconds, not {device.overhead:g}")
        if device.memory not in {m.name for m in self.memories}:
            raise BadInput(f"{where}: unknown memory {device.memory!r}: add a [[memory]] of that name")

    def _check_link(self, link: Link) -> None:
        where = f"{self.name}: link from {link.source!r} to {link.target!r}"
        names = [d.name for d in self.devices]
        for end in (link.source, link.target):
            if end not in names:
                raise BadInput(f"{where}: unknown device {end!r}: the devices are {', '.join(names)}")
        if link.source == link.target:
            raise BadInput(f"{where}: a device needs no link to itself")
        if not link.bandwidth > 0:
            raise BadInput(f"{where}: bandwidth must be above 0 bytes per second, not {link.bandwidth:g}")
        if not (link.latency >= 0 and math.isfinite(link.latency)):
            raise BadInput(f"{where}: latency must be 0 or more seconds, not {link.latency:g}")

    @cached_property
    def _links(self) -> dict[tuple[str, str], Link]:
        return {(link.source, link.target): link for link in self.links}

    @cached_property
    def index(self) -> dict[str, int]:
        """Return the index of each device by its name."""
        return {device.name: i for i, device in enumerate(self.devices)}

    @cached_property
    def memory_of(self) -> tuple[int, ...]:
        """Return, for each device, the index of its memory."""
        names = [m.name for m in self.memories]
        return tuple(names.index(d.memory) for d in self.devices)

    @cached_property
    def processors(self) -> tuple[str, ...]:
        """Return the names of the processors: those of the devices, or of the cores that some of them share."""
        return tuple(dict.fromkeys(d.processor for d in self.devices))

    @cached_property
    def processor_of(self) -> tuple[int, ...]:
        """Return, for each device, the index of its processor, which is the lane of its tasks."""
        return tuple(self.processors.index(d.processor) for d in self.devices)

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """Return the names of the lanes that tasks are on: the processors, then the buses and the links without a
        bus."""
        links = (self._lane_name(link) for link in self.links if link.bus not in self.processors)
        return (*self.processors, *dict.fromkeys(links))

    @cached_property
    def lane_of(self) -> dict[tuple[int, int], int]:
        """Return the lane of transfers from one device to another, by their indices."""
        count = len(self.processors)
        places = {name: i for i, name in enumerate(self.lanes[count:], count)}
        found = {}
        for link in self.links:
            own = link.bus in self.processors
            lane = self.processors.index(link.bus) if own else places[self._lane_name(link)]
            found[self.index[link.source], self.index[link.target]] = lane
        return found

    def link(self, source: int, target: int) -> Link:
        """Return the link from one device to another, by their indices. Raises KeyError where there is none."""
        return self._links[self.devices[source].name, self.devices[target].name]

    def among(self, names: Sequence[str]) -> Topology:
        """Return the topology of these devices, in this order, and of what connects them. Raises BadInput for a name
        that is not in the topology."""
        for name in names:
            if name not in self.index:
                raise BadInput(f"{self.name}: no device {name!r}: it has {', '.join(self.index)}")
        devices = tuple(self.devices[self.index[name]] for name in names)
        memories = tuple(m for m in self.memories if m.name in {d.memory for d in devices})
        links = tuple(link for link in self.links if {link.source, link.target} <= set(names))
        return Topology(self.name, devices, memories, links)

    def of_kind(self, kind: str) -> tuple[int, ...]:
        """Return the indices of the devices of a kind ("cpu", "gpu")."""
        return tuple(i for i, d in enumerate(self.devices) if d.kind == kind)

    def able(self, operator: str) -> tuple[int, ...]:
        """Return the indices of the devices that can compute a kind of operators."""
        return tuple(i for i, d in enumerate(self.devices) if operator not in d.lacks)

    @staticmethod
    def _lane_name(link: Link) -> str:
        return f"bus {link.bus}" if link.bus else f"{link.source} to {link.target}"


def _unique(where: str, what: str, names: list[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInput(f"{where}: {what} {twice!r} is there twice: every {what} needs a name of its own")
