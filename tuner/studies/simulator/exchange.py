"""Models what training does with the parameters of a layer, which its operators (the steps of a recurrent network)
share. The devices that hold them exchange gradients, and each updates its copy. Start at `Layer`.

Jia, Zaharia and Aiken ("Beyond Data and Model Parallelism for Deep Neural Networks") do not say how gradients are
exchanged. Here the r devices with the same piece of the parameters form a ring. When all gradients are there, each link
of the ring carries 2 (r - 1) / r of the piece's bytes. Parameters are cut into pieces wherever an operator may cut
them, and pieces on the same devices go round together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_

import numpy as np

from tuner.studies.networks import NetworkOperator
from tuner.studies.networks.operators import ITEM
from tuner.studies.simulator.costs import CostModel, Phase, Work
from tuner.studies.simulator.patterns import Pattern, ticks
from tuner.studies.soap import PartConfig, regions_of
from tuner.studies.soap.configs import cut, part_counts
from tuner.studies.topology import Topology


class Links:
    """Holds the links of a topology as tables of (source, target): lane, seconds of latency, seconds per byte."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        shape = (len(topology.devices), len(topology.devices))
        self.lane, self.latency, self.rate = np.zeros(shape, np.int32), np.zeros(shape), np.zeros(shape)
        for (a, b), lane in topology.lane_of.items():
            link = topology.link(a, b)
            self.lane[a, b], self.latency[a, b], self.rate[a, b] = lane, link.latency, 1 / link.bandwidth

    @cached_property
    def sync(self) -> int:
        """Return the lane for tasks that take no time."""
        return len(self.topology.lanes)


@dataclass(frozen=True)
class _Rings:
    """Describes the rings of a layer.

    `of` holds the ring of each piece, and `entry` for each ring the task that waits for all its gradients. `waits`
    holds the dependencies on an operator's gradients, by the number of its config. Rings with equal `of` and `entry`
    share them.
    """

    of: np.ndarray
    entry: np.ndarray
    waits: dict[int, Pattern]
    pattern: Pattern


class Layer:
    """The operators `members`, which share their parameters and are all like `first`."""

    def __init__(
        self,
        name: str,
        members: tuple[int, ...],
        first: NetworkOperator,
        *,
        links: Links,
        cost: CostModel,
        training: bool,
    ) -> None:
        self.name, self.members = name, members
        self._first, self._links, self._cost, self._training = first, links, cost, training
        # If no dimension splits the weights, they are cut along a dimension that is never split, so every part has all
        # of them.
        self._dim = first.axes.index("p" if "p" in first.axes else "-")
        counts = part_counts(len(links.topology.devices))
        self._cut({d for n in counts for d in range(1, n + 1) if n % d == 0})

    def _cut(self, degrees: set[int]) -> None:
        """Cut the parameters into pieces that all of these degrees respect. What was made from other pieces is
        forgotten."""
        self._degrees, extent = degrees, self._first.shape[self._dim]
        points = {cut(extent, d, j)[0] for d in degrees if d <= extent for j in range(d)}
        self._bounds = [*sorted(points), extent]
        self._held: dict[int, int] = {}  # by the number of a config, as `_rows`: see `_use`
        self._rows: dict[int, np.ndarray] = {}
        self._waits: dict[bytes, dict[int, Pattern]] = {}
        self._rings: dict[int, _Rings] = {}

    def forget(self) -> None:
        self._cut(self._degrees)

    def patterns(self, numbers: Sequence[int], configs: Sequence[PartConfig]) -> list[Pattern]:
        """Return the pattern of the exchange and the updates. In training, it is followed for each operator by the
        dependencies on its gradients (roles: the operator, the exchange). `numbers` says which of the `configs` each
        operator has."""
        try:
            held = reduce(or_, map(self._held.__getitem__, numbers))
        except KeyError:
            self._know(numbers, configs)
            return self.patterns(numbers, configs)
        rings = self._rings.get(held)
        if rings is None:
            rings = self._rings[held] = self._exchange(held)
        if not self._training:
            return [rings.pattern]
        try:
            return [rings.pattern, *map(rings.waits.__getitem__, numbers)]
        except KeyError:
            return [rings.pattern, *(rings.waits.get(n) or self._waiting(n, rings) for n in numbers)]

    def _know(self, numbers: Sequence[int], configs: Sequence[PartConfig]) -> None:
        degrees = {configs[number].degrees[self._dim] for number in numbers if number not in self._held}
        if not degrees <= self._degrees:
            self._cut(self._degrees | degrees)
        for number in numbers:
            if number not in self._held:
                self._held[number], self._rows[number] = self._use(configs[number])

    def _use(self, config: PartConfig) -> tuple[int, np.ndarray]:
        """Return which pieces an operator's parts have: as bits (piece, device), and as rows of backward task and
        piece."""
        regions, rows, bits = regions_of(self._first.shape, config.degrees), [], 0
        devices = len(self._links.topology.devices)
        for part, device in enumerate(config.devices):
            low, high = np.searchsorted(self._bounds, regions[part, self._dim]).tolist()
            for piece in range(low, high):
                rows.append((len(regions) + part, piece))
                bits |= 1 << (piece * devices + device)
        return bits, np.array(rows, np.int32).reshape(-1, 2)

    def _waiting(self, number: int, rings: _Rings) -> Pattern:
        """Return the dependencies of the rings' tasks on an operator's backward tasks."""
        rows = self._rows[number]
        pairs = np.unique(np.column_stack([rows[:, 0], rings.entry[rings.of[rows[:, 1]]]]), axis=0)
        deps = np.tile(np.array([1, 0, 2, 0], np.int32), (len(pairs), 1))
        deps[:, (1, 3)] = pairs
        found = rings.waits[number] = Pattern(np.empty(0), np.empty(0), deps, np.zeros(len(rings.pattern.memory)))
        return found

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
        waits = self._waits.setdefault(of.tobytes() + np.array(entry).tobytes(), {})
        return _Rings(of, np.array(entry), waits, Pattern(ticks(tasks.exe), lane, deps, memory))


class _Tasks:
    def __init__(self, links: Links, cost: CostModel, operator: NetworkOperator) -> None:
        self._links, self._cost, self._operator = links, cost, operator
        self.exe: list[float] = []
        self.lane: list[int] = []
        self.deps: list[tuple[int, int, int, int]] = []

    def _add(self, seconds: float, lane: int) -> int:
        self.exe.append(seconds)
        self.lane.append(lane)
        return len(self.exe) - 1

    def ring(self, devices: list[int], size: float) -> int:
        """Add the exchange and the update of `size` bytes, and return the first of the tasks."""
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
        work = Work(2 * size / ITEM, 5 * size)  # an update reads gradient, weight and momentum, and writes the last two
        for d in devices:
            seconds = self._cost.seconds(self._operator, Phase.UPDATE, work, 1.0, links.topology.devices[d])
            self.deps.append((0, ready, 0, self._add(seconds, links.topology.processor_of[d])))
        return entry
