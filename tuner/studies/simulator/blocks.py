"""Builds the task graph in blocks (Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for Deep Neural
Networks", section 5.1). A block is an operator's tasks, the transfers along an edge, or the exchange of a layer's
gradients. A block depends only on the configs of its operators. Start at `Blocks`.

An operator's block has its forward tasks, one a part, then its backward tasks. Along an edge, every pair of parts with
a common piece of the tensor has a dependency, or a transfer of that piece where their devices differ. Backward, the
gradient of the piece goes the other way and is added to the part's gradient. So halos and split parameters are summed
where they come from.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from threading import Lock

import numpy as np

from tuner.studies.networks import Network
from tuner.studies.networks.operators import ITEM
from tuner.studies.simulator.costs import CostModel, Phase, Work
from tuner.studies.simulator.exchange import Layer, Links
from tuner.studies.simulator.patterns import Pattern, ticks
from tuner.studies.soap import PartConfig, regions_of
from tuner.studies.soap.configs import needs_of
from tuner.studies.topology import Topology

_KEPT = 40_000  # patterns of edges that are cached; the cache is cleared when it is full


class Blocks:
    """Makes the blocks of a network on a topology; several threads may ask for them.

    Blocks are numbered: operators, then edges, then layers. In training, every layer's operators follow once more, with
    the dependencies of the exchange on their gradients.
    """

    def __init__(self, network: Network, topology: Topology, cost: CostModel, training: bool) -> None:
        self.network, self.topology, self.cost, self.training = network, topology, cost, training
        operators = network.operators
        self.edges = [(u, v, k) for v, o in enumerate(operators) for k, u in enumerate(o.inputs)]
        layers: dict[str, list[int]] = defaultdict(list)
        for i, operator in enumerate(operators):
            if operator.weights:
                layers[operator.layer or operator.name].append(i)
        self._sinks = set(range(len(operators))) - {u for u, _, _ in self.edges}
        self._classes = _numbered([self._class(i) for i in range(len(operators))])
        self._edge_classes = _numbered([(self._classes[u], self._classes[v], k) for u, v, k in self.edges])
        self._lock = Lock()
        self._ids: dict[PartConfig, int] = {}
        self._configs: list[PartConfig] = []  # the config of each id
        self._operator_patterns: dict[tuple[int, int], Pattern] = {}
        self._edge_patterns: dict[tuple[int, int, int], Pattern] = {}
        self._pairs: dict[tuple[Hashable, ...], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._links = links = Links(topology)
        self._lane, self._latency, self._rate = links.lane, links.latency, links.rate
        self._memory_of = np.array(topology.memory_of)
        self.layers = [
            Layer(name, tuple(m), operators[m[0]], links=links, cost=cost, training=training)
            for name, m in layers.items()
        ]

    def _class(self, i: int) -> tuple[object, ...]:
        """Return a key that is equal for operators with equal blocks."""
        o = self.network.operators[i]
        name = o.name if hasattr(self.cost, "table") else ""
        shapes = tuple(self.network.operators[u].shape for u in o.inputs)
        return name, o.kind, o.shape, o.axes, o.reads, o.flop, o.weights, o.extra, shapes, i in self._sinks

    def forget(self) -> None:
        """Drop all blocks of edges and layers, but keep those of operators."""
        self._edge_patterns.clear()
        self._pairs.clear()
        for layer in self.layers:
            layer.forget()

    def config_id(self, config: PartConfig) -> int:
        """Return the number of a config, which the methods below take."""
        found = self._ids.get(config)
        if found is None:
            with self._lock:
                found = self._ids.setdefault(config, len(self._configs))
                if found == len(self._configs):
                    self._configs.append(config)
        return found

    def config(self, number: int) -> PartConfig:
        return self._configs[number]

    def operator(self, i: int, number: int) -> Pattern:
        key = self._classes[i], number
        found = self._operator_patterns.get(key)
        if found is None:
            with self._lock:
                found = self._operator_patterns[key] = self._operator(i, self._configs[number])
        return found

    def edge(self, e: int, one: int, other: int) -> Pattern:
        """Return the block of an edge. `one` and `other` are the numbers of the producer's and the consumer's
        config."""
        key = self._edge_classes[e], one, other
        found = self._edge_patterns.get(key)
        if found is None:
            with self._lock:
                if len(self._edge_patterns) >= _KEPT:
                    self._edge_patterns.clear()
                found = self._edge_patterns[key] = self._edge(e, self._configs[one], self._configs[other])
        return found

    def layer(self, g: int, numbers: Sequence[int]) -> list[Pattern]:
        """Return a layer's block, then for each of its operators the dependencies of that block on it. `numbers` are
        those of the operators' configs."""
        with self._lock:
            return self.layers[g].patterns(numbers, self._configs)

    def works(self, i: int, config: PartConfig) -> list[tuple[Work, float]]:
        """Return, for each part, the work of its forward step and the share of the output that it makes."""
        operators, o = self.network.operators, self.network.operators[i]
        regions = regions_of(o.shape, config.degrees)
        lengths = regions[..., 1] - regions[..., 0]
        shares = lengths.prod(axis=1) / math.prod(o.shape)
        weights = np.full(len(regions), o.weights)
        for dim, axis in enumerate(o.axes):
            if axis == "p":
                weights = weights * lengths[:, dim] / o.shape[dim]
        moved = shares * (o.bytes + o.extra) + weights
        for k, u in enumerate(o.inputs):
            needs = needs_of(o, k, regions, operators[u].shape)
            moved = moved + (needs[..., 1] - needs[..., 0]).prod(axis=1) * ITEM
        return [(Work(o.flop * s, m), float(s)) for s, m in zip(shares, moved, strict=True)]

    def _operator(self, i: int, config: PartConfig) -> Pattern:
        o, devices, parts = self.network.operators[i], self.topology.devices, len(config.devices)
        forward, backward = [], []
        passes = 2.0 if o.weights and o.inputs else 1.0  # one for the input's gradient, one for the weights'
        for (work, share), d in zip(self.works(i, config), config.devices, strict=True):
            forward.append(self.cost.seconds(o, Phase.FORWARD, work, share, devices[d]))
            back = Work(passes * work.flop, passes * work.bytes)
            backward.append(self.cost.seconds(o, Phase.BACKWARD, back, share, devices[d]))
        memory = np.zeros(len(self.topology.memories))
        held = o.bytes * (2 if self.training else 1) / parts
        np.add.at(memory, self._memory_of[list(config.devices)], held)
        lane = [self.topology.processor_of[d] for d in config.devices]
        if not self.training:
            return Pattern(ticks(forward), np.array(lane), np.empty((0, 4)), memory)
        ends = [(0, a, 0, parts + a) for a in range(parts)] if i in self._sinks else []
        deps = np.array(ends, np.int32).reshape(-1, 4)
        return Pattern(ticks(forward + backward), np.array(lane + lane), deps, memory)

    def pieces(self, e: int, one: PartConfig, other: PartConfig) -> np.ndarray:
        """Return the bytes that each part of an edge's producer (rows) has of what each part of its consumer (columns)
        needs."""
        u, v, k = self.edges[e]
        operators = self.network.operators
        made = regions_of(operators[u].shape, one.degrees)
        needed = needs_of(operators[v], k, regions_of(operators[v].shape, other.degrees), operators[u].shape)
        low = np.maximum(made[:, None, :, 0], needed[None, :, :, 0])
        high = np.minimum(made[:, None, :, 1], needed[None, :, :, 1])
        return np.maximum(high - low, 0).prod(axis=2) * ITEM

    def transfers(self, e: int, one: PartConfig, other: PartConfig, back: bool = False) -> np.ndarray:
        """Return the ticks of the transfer between each part of the producer and each part of the consumer.

        With `back` it is the transfer of the gradient. The result is 0 on one device, and infinite where nothing is
        needed.
        """
        pieces = self.pieces(e, one, other)
        u, v = np.array(one.devices)[:, None], np.array(other.devices)[None, :]
        source, target = (v, u) if back else (u, v)
        found = ticks(self._latency[source, target] + pieces * self._rate[source, target]).astype(float)
        found = np.where(u == v, 0.0, found)
        return np.where(pieces > 0, found, np.inf)

    def _edge(self, e: int, one: PartConfig, other: PartConfig) -> Pattern:
        a, b, size = self._common(e, one, other)
        source, target = np.array(one.devices)[a], np.array(other.devices)[b]
        far = source != target
        near, n = np.flatnonzero(~far), int(far.sum())
        na, nb, fa, fb, fs, ft, size = a[near], b[near], a[far], b[far], source[far], target[far], size[far]
        there = np.arange(n)
        rows = [(1, na, 2, nb), (1, fa, 0, there), (0, there, 2, fb)]
        rate = self._rate[fs, ft]
        exe, lane = [self._latency[fs, ft] + size * rate], [self._lane[fs, ft]]
        copied = size * (rate > 0)  # a shared memory holds it once
        memory = np.bincount(self._memory_of[ft], copied, len(self.topology.memories))
        if self.training:
            p, q, back = len(one.devices), len(other.devices), there + n
            rows += [(2, q + nb, 1, p + na), (2, q + fb, 0, back), (0, back, 1, p + fa)]
            exe.append(self._latency[ft, fs] + size * self._rate[ft, fs])
            lane.append(self._lane[ft, fs])
            memory += np.bincount(self._memory_of[fs], copied, len(memory))
        return Pattern(ticks(np.concatenate(exe)), np.concatenate(lane), _dependencies(rows), memory)

    def _common(self, e: int, one: PartConfig, other: PartConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the pairs of parts that have something in common, and its bytes. Devices do not matter here."""
        key = self._edge_classes[e], one.degrees, other.degrees
        found = self._pairs.get(key)
        if found is None:
            pieces = self.pieces(e, one, other)
            a, b = np.nonzero(pieces)
            found = self._pairs[key] = a, b, pieces[a, b]
        return found


def _dependencies(rows: Sequence[tuple[int, np.ndarray, int, np.ndarray]]) -> np.ndarray:
    """Return the dependencies as rows of role, task, and the role and task that wait for it."""
    found, at = np.empty((sum(len(tasks) for _, tasks, _, _ in rows), 4), np.int32), 0
    for role, tasks, other, others in rows:
        part = found[at : at + len(tasks)]
        part[:, 0], part[:, 1], part[:, 2], part[:, 3] = role, tasks, other, others
        at += len(tasks)
    return found


def _numbered(keys: Sequence[object]) -> list[int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
