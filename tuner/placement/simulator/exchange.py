"""What training does with the parameters of a layer, whose operators (the steps of a recurrent network) share them: the
devices that have them exchange gradients, and each updates its copy. Start at `Layer`.

Paper 002 does not say how gradients are exchanged. Here the devices with the same piece of the parameters form a ring,
each link of which carries 2 (r - 1) / r of its bytes when all the gradients are there. Parameters are cut into pieces
wherever an operator may cut them, and pieces on the same devices go round together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tuner.placement.networks import Operator
from tuner.placement.networks.operators import ITEM
from tuner.placement.simulator.costs import CostModel, Phase, Work
from tuner.placement.simulator.patterns import Pattern, ticks
from tuner.placement.soap import Config, regions_of
from tuner.placement.soap.configs import cut, part_counts
from tuner.placement.topology import Topology


class Links:
    """A topology's links as tables of (source, target): lane, seconds, seconds per byte."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        shape = (len(topology.devices), len(topology.devices))
        self.lane, self.latency, self.rate = np.zeros(shape, np.int32), np.zeros(shape), np.zeros(shape)
        for (a, b), lane in topology.lane_of.items():
            link = topology.link(a, b)
            self.lane[a, b], self.latency[a, b], self.rate[a, b] = lane, link.latency, 1 / link.bandwidth

    @cached_property
    def sync(self) -> int:
        """A lane for tasks that take no time."""
        return len(self.topology.lanes)


@dataclass(frozen=True)
class _Rings:
    """`of`: the ring of each piece; `entry`: for each ring the task that waits for all its gradients; `deps`: among the
    tasks; `memory`: bytes of each memory."""

    key: bytes
    of: np.ndarray
    entry: np.ndarray
    exe: np.ndarray
    lane: np.ndarray
    deps: np.ndarray
    memory: np.ndarray


class Layer:
    """The operators `members`, all like `first`."""

    def __init__(
        self, name: str, members: tuple[int, ...], first: Operator, links: Links, cost: CostModel, training: bool
    ) -> None:
        self.name, self.members = name, members
        self._first, self._links, self._cost, self._training = first, links, cost, training
        # Weights that no dimension splits are cut along one that is never split: every part has all of them.
        self._dim = first.axes.index("p" if "p" in first.axes else "-")
        counts = part_counts(len(links.topology.devices))
        self._cut({d for n in counts for d in range(1, n + 1) if n % d == 0})

    def _cut(self, degrees: set[int]) -> None:
        """Into pieces that all of these degrees respect; what was made from other pieces is forgotten."""
        self._degrees, extent = degrees, self._first.shape[self._dim]
        points = {cut(extent, d, j)[0] for d in degrees if d <= extent for j in range(d)}
        self._bounds = [*sorted(points), extent]
        self._uses: dict[int, tuple[int, np.ndarray]] = {}
        self._waits: dict[tuple[int, bytes], np.ndarray] = {}
        self._rings: dict[int, _Rings] = {}

    def forget(self) -> None:
        self._cut(self._degrees)

    def pattern(self, configs: Sequence[Config], numbers: Sequence[int]) -> Pattern:
        """`configs`: of the operators; `numbers`: equal for equal configs."""
        if any(c.degrees[self._dim] not in self._degrees for c in configs):
            self._cut(self._degrees | {c.degrees[self._dim] for c in configs})
        held = 0
        for config, number in zip(configs, numbers, strict=True):
            if number not in self._uses:
                self._uses[number] = self._use(config)
            held |= self._uses[number][0]
        rings = self._rings.get(held)
        if rings is None:
            rings = self._rings[held] = self._exchange(held)
        if not self._training:
            return Pattern(rings.exe, rings.lane, rings.deps, rings.memory)
        found = [self._waiting(number, rings) for number in numbers]
        waits = np.concatenate(found)
        every = np.zeros((len(waits) + len(rings.deps), 4), np.int32)
        every[: len(waits), 0] = np.repeat(np.arange(1, len(found) + 1), [len(f) for f in found])
        every[: len(waits), (1, 3)] = waits
        every[len(waits) :] = rings.deps
        return Pattern(rings.exe, rings.lane, every, rings.memory)

    def _use(self, config: Config) -> tuple[int, np.ndarray]:
        """Which pieces an operator's parts have: as bits (piece, device), and as rows of backward task and piece."""
        regions, rows, bits = regions_of(self._first.shape, config.degrees), [], 0
        devices = len(self._links.topology.devices)
        for part, device in enumerate(config.devices):
            low, high = np.searchsorted(self._bounds, regions[part, self._dim]).tolist()
            for piece in range(low, high):
                rows.append((len(regions) + part, piece))
                bits |= 1 << (piece * devices + device)
        return bits, np.array(rows, np.int32).reshape(-1, 2)

    def _waiting(self, number: int, rings: _Rings) -> np.ndarray:
        """Rows of an operator's backward task, and the task of a ring that waits for it."""
        key = number, rings.key
        if key not in self._waits:
            rows = self._uses[number][1]
            self._waits[key] = np.unique(np.column_stack([rows[:, 0], rings.entry[rings.of[rows[:, 1]]]]), axis=0)
        return self._waits[key]

    def _exchange(self, held: int) -> _Rings:
        topology, count = self._links.topology, len(self._links.topology.devices)
        masks = [held >> (piece * count) & ((1 << count) - 1) for piece in range(len(self._bounds) - 1)]
        numbers: dict[int, int] = {}
        of = np.array([numbers.setdefault(mask, len(numbers)) for mask in masks])
        lengths, weights = np.diff(self._bounds), self._first.weights / self._first.shape[self._dim]
        memory = np.zeros(len(topology.memories))
        tasks = _Tasks(self._links, self._cost, self._first)
        entry = []
        for mask, ring in numbers.items():
            devices = [d for d in range(count) if mask >> d & 1]
            size = int(lengths[of == ring].sum()) * weights
            for d in devices:
                memory[topology.memory_of[d]] += size * (3 if self._training else 1)
            if self._training:
                entry.append(tasks.ring(devices, size))
        deps = np.array(tasks.deps, np.int32).reshape(-1, 4)
        lane = np.array(tasks.lane, np.int32)
        return _Rings(
            of.tobytes() + np.array(entry).tobytes(), of, np.array(entry), ticks(tasks.exe), lane, deps, memory
        )


class _Tasks:
    def __init__(self, links: Links, cost: CostModel, operator: Operator) -> None:
        self._links, self._cost, self._operator = links, cost, operator
        self.exe: list[float] = []
        self.lane: list[int] = []
        self.deps: list[tuple[int, int, int, int]] = []

    def _add(self, seconds: float, lane: int) -> int:
        self.exe.append(seconds)
        self.lane.append(lane)
        return len(self.exe) - 1

    def ring(self, devices: list[int], size: float) -> int:
        """Exchange and update of so many bytes; the first of the tasks."""
        links, count = self._links, len(devices)
        entry = ready = self._add(0.0, links.sync)
        if count > 1:
            steps, passed = 2 * (count - 1), []
            for i, d in enumerate(devices):
                after = devices[(i + 1) % count]
                seconds = float(steps * links.latency[d, after] + steps / count * size * links.rate[d, after])
                passed.append(self._add(seconds, int(links.lane[d, after])))
            ready = self._add(0.0, links.sync)
            for task in passed:
                self.deps += [(0, entry, 0, task), (0, task, 0, ready)]
        work = Work(2 * size / ITEM, 5 * size)  # reads gradient, weight and momentum, writes the last two
        for d in devices:
            seconds = self._cost.seconds(self._operator, Phase.UPDATE, work, 1.0, links.topology.devices[d])
            self.deps.append((0, ready, 0, self._add(seconds, links.topology.processor_of[d])))
        return entry
