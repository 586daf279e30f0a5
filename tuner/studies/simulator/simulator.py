"""The execution simulator predicts seconds, memory and timeline of a strategy (Jia, Zaharia and Aiken, "Beyond Data and
Model Parallelism for Deep Neural Networks", section 5). Start at `Simulator`.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tuner.errors import BadInput
from tuner.studies.networks import Network
from tuner.studies.simulator.blocks import Blocks
from tuner.studies.simulator.costs import CostModel, Roofline
from tuner.studies.simulator.library import Memory, core
from tuner.studies.simulator.patterns import TICK, Pattern
from tuner.studies.simulator.timeline import Timeline, timeline_of
from tuner.studies.soap import PartConfig, Strategy
from tuner.studies.topology import Topology

_NO_LIMIT = (1 << 63) - 1


class _Replaced(NamedTuple):
    """The numbers of the blocks to replace, and the patterns that replace them."""

    ids: list[int]
    patterns: list[Pattern]

    @property
    def arrays(self) -> tuple[ctypes.Array[ctypes.c_int32], ctypes.Array[ctypes.c_void_p]]:
        """Return both as arrays for C, which uses them during a call."""
        count = len(self.ids)
        return (ctypes.c_int32 * count)(*self.ids), (ctypes.c_void_p * count)(*[p.address for p in self.patterns])


def _ticks(limit: float) -> int:
    return _NO_LIMIT if limit >= 1e6 else int(limit / TICK)


class Simulator:
    """Simulates one network on one topology. With `training`, a step is forward, backward and update, else forward
    alone.

    `start` simulates a strategy from nothing (algorithm 1). Then `propose` changes configs and brings the timeline up
    to date (algorithm 2), and `accept` or `reject` keeps the change or takes it back. Both algorithms give the same
    timeline.

    `blocks` are those of another simulator, see `twin`.

    Raises BadInput where no device can compute an operator, or where the network cannot fit into all memories together.
    """

    def __init__(
        self,
        network: Network,
        topology: Topology,
        cost: CostModel | None = None,
        *,
        training: bool = False,
        blocks: Blocks | None = None,
    ) -> None:
        self.network, self.topology, self.training = network, topology, training
        self.blocks = blocks or Blocks(network, topology, cost or Roofline(), training)
        self._check()
        every, count = set(range(len(topology.devices))), len(network.operators)
        self._lacking = [every - set(topology.able(o.kind)) for o in network.operators]  # mostly empty
        self._edges_of: list[list[int]] = [[] for _ in range(count)]
        for e, (u, v, _) in enumerate(self.blocks.edges):
            self._edges_of[u].append(e)
            self._edges_of[v].append(e)
        layers = self.blocks.layers
        self._layer_of = {m: g for g, layer in enumerate(layers) for m in layer.members}
        self._place_of = {m: k for layer in layers for k, m in enumerate(layer.members)}  # operator: index in its layer
        self._first_edge, self._first_layer = count, count + len(self.blocks.edges)
        self._first_wait = total = self._first_layer + len(layers)
        self._waits_of: list[list[int]] = [[] for _ in layers]  # block numbers, in the order of a layer's operators
        for layer, waits in zip(layers, self._waits_of, strict=True):
            waits += range(total, total + len(layer.members)) if training else ()
            total += len(waits)
        roles = np.zeros((total, 2), np.int32)
        roles[self._first_edge : self._first_layer] = [(u, v) for u, v, _ in self.blocks.edges] or np.empty((0, 2))
        for g, waits in enumerate(self._waits_of):
            roles[waits] = [(m, self._first_layer + g) for m in layers[g].members[: len(waits)]] or np.empty((0, 2))
        self._core = core()
        self._sim = self._core.sim_new(len(topology.lanes) + 1, total, roles.ctypes.data)
        weakref.finalize(self, self._core.sim_free, self._sim)
        self._capacity = np.array([m.bytes for m in topology.memories], float)
        self._memory = np.zeros(len(self._capacity))  # C reads this array and `_capacity`: neither may be replaced
        self._bytes = Memory(len(self._capacity), self._memory.ctypes.data, self._capacity.ctypes.data)
        self._patterns: list[Pattern] = []
        self._pending: tuple[dict[int, int], _Replaced, float] | None = None
        self._numbers: list[int] = []  # each operator's config: see `Blocks.config_id`
        self.seconds = math.inf

    def _check(self) -> None:
        for o in self.network.operators:
            if not self.topology.able(o.kind):
                raise BadInput(f"{self.topology.name}: no device computes {o.kind} ({o.name!r} of {self.network.name})")
        need = self.network.weights * (3 if self.training else 1)
        need += sum(o.bytes for o in self.network.operators) * (2 if self.training else 1)
        have = sum(m.bytes for m in self.topology.memories)
        if need > have:
            raise BadInput(
                f"{self.network.name} needs {need / 1e6:.1f} MB, all memories of {self.topology.name} together have "
                f"{have / 1e6:.1f}: take a smaller batch or more devices"
            )

    def _check_able(self, i: int, config: PartConfig) -> None:
        operator, devices = self.network.operators[i], self.topology.devices
        lacking = next((d for d in self._lacking[i] if d in config.devices), None)
        if lacking is not None:
            raise BadInput(
                f"{self.topology.name}: {devices[lacking].name} cannot compute {operator.kind} ({operator.name!r})"
            )

    def twin(self) -> Simulator:
        """Return another simulator of the same network, without a strategy yet, for another thread. Both share the
        blocks that either has made."""
        return Simulator(self.network, self.topology, training=self.training, blocks=self.blocks)

    # ---- the state ----

    @property
    def strategy(self) -> Strategy:
        """Return the current config of every operator."""
        return tuple(map(self.blocks.config, self._numbers))

    def strategy_at(self, operator: int) -> PartConfig:
        """Return the current config of one operator, by its index."""
        return self.blocks.config(self._numbers[operator])

    @property
    def memory(self) -> tuple[float, ...]:
        """Return the bytes that the strategy needs of each memory, as if none were freed.

        These are the weights (in training with gradients and momenta), the activations (in training with their
        gradients) and the copies of parts of other devices.
        """
        return tuple(float(m) for m in self._memory)

    @property
    def excess(self) -> float:
        """Return by how many bytes the strategy exceeds the memories, summed over them; 0 means that it fits."""
        return float(np.maximum(self._memory - self._capacity, 0).sum())

    @property
    def tasks(self) -> int:
        """Return how many tasks are on devices and links."""
        return sum(len(p.exe) for p in self._patterns)

    def start(self, strategy: Sequence[PartConfig]) -> float:
        """Build the task graph and simulate it; return the seconds of one step. Raises BadInput where an operator is on
        a device that cannot compute it."""
        for i, config in enumerate(strategy):
            self._check_able(i, config)
        self._pending = None
        self._numbers = [self.blocks.config_id(config) for config in strategy]
        self._patterns = [self.blocks.operator(i, number) for i, number in enumerate(self._numbers)]
        self._patterns += [self._edge(e, {}) for e in range(len(self.blocks.edges))]
        layers = [self._layer(g, {}) for g in range(len(self.blocks.layers))]
        self._patterns += [exchange for exchange, *_ in layers] + [wait for _, *waits in layers for wait in waits]
        self._memory[:] = np.sum([p.memory for p in self._patterns], axis=0)
        self.seconds = self.full()
        return self.seconds

    def full(self) -> float:
        """Simulate the strategy again from nothing, with algorithm 1 and the construction of the graph. Returns
        seconds."""
        addresses = [pattern.address for pattern in self._patterns]
        self._core.sim_build(self._sim, (ctypes.c_void_p * len(addresses))(*addresses))
        return int(self._core.sim_full(self._sim)) * TICK

    def simulate(self) -> float:
        """Simulate by algorithm 1 without constructing the graph. Returns seconds."""
        return int(self._core.sim_full(self._sim)) * TICK

    def propose(self, changes: Mapping[int, PartConfig], limit: float = math.inf) -> float:
        """Return the seconds with other configs for some operators (by their indices). Then call `accept` or `reject`.

        The result is infinite if it is above `limit`. It is also infinite if the change exceeds a memory, and by no
        less than the current strategy does. Raises BadInput as `start` does.
        """
        self.reject()
        new = self._new(changes)
        found = self._replaced(new)
        change = len(found.ids), *found.arrays
        if self._core.sim_too_large(self._sim, *change, ctypes.addressof(self._bytes)):
            return math.inf
        self._core.sim_replace(self._sim, *change)
        ended = int(self._core.sim_delta(self._sim, _ticks(limit)))
        if ended < 0:
            self._core.sim_rollback(self._sim)
            return math.inf
        self._pending = new, found, ended * TICK
        return ended * TICK

    def look(self, many: Sequence[Mapping[int, PartConfig]], limit: float = math.inf) -> list[float]:
        """Return what `propose` would return for each of many changes to the strategy, which stays as it is."""
        self.reject()
        every, counts = _Replaced([], []), []
        for changes in many:
            ids, patterns = self._replaced(self._new(changes))
            every.ids.extend(ids)
            every.patterns.extend(patterns)
            counts.append(len(ids))
        found, each = (ctypes.c_int64 * len(counts))(), (ctypes.c_int32 * len(counts))(*counts)
        given = (*every.arrays, ctypes.addressof(self._bytes), _ticks(limit), found)
        self._core.sim_look(self._sim, len(counts), each, *given)
        return [ended * TICK if ended >= 0 else math.inf for ended in found]

    def _new(self, changes: Mapping[int, PartConfig]) -> dict[int, int]:
        """Return only the changes that differ from the current strategy: operator index -> config id."""
        new = {}
        for i, config in changes.items():
            number = self.blocks.config_id(config)
            if number != self._numbers[i]:
                if self._lacking[i]:
                    self._check_able(i, config)
                new[i] = number
        return new

    def accept(self) -> None:
        """Keep what was proposed. Raises RuntimeError if nothing was proposed (infinite seconds cannot be kept)."""
        if self._pending is None:
            raise RuntimeError("nothing was proposed that could be accepted")
        new, found, self.seconds = self._pending
        self._pending = None
        self._core.sim_commit(self._sim)
        for i, number in new.items():
            self._numbers[i] = number
        for block, pattern in zip(found.ids, found.patterns, strict=True):
            self._memory += pattern.memory - self._patterns[block].memory
            self._patterns[block] = pattern

    def reject(self) -> None:
        """Take back what was proposed, if anything was."""
        if self._pending is not None:
            self._pending = None
            self._core.sim_rollback(self._sim)

    def timeline(self) -> Timeline:
        """Return when every task was ready, started and ended, in the strategy with the proposed changes."""
        patterns = list(self._patterns)
        for block, pattern in zip(*self._pending[1], strict=True) if self._pending else ():
            patterns[block] = pattern
        times = []
        del patterns[self._first_wait :]  # the blocks behind these have no tasks
        for block, pattern in enumerate(patterns):
            found = np.zeros((len(pattern.exe), 3), np.int64)
            self._core.sim_times(self._sim, block, found.ctypes.data)
            times.append(found)
        return timeline_of(self.blocks, patterns, times)

    # ---- blocks ----

    def _replaced(self, new: Mapping[int, int]) -> _Replaced:
        """Return the blocks that change if operators get other configs: operator index -> config id."""
        edges = dict.fromkeys(e for i in new for e in self._edges_of[i])
        layers = dict.fromkeys(self._layer_of[i] for i in new if i in self._layer_of)
        ids, patterns = list(new), [self.blocks.operator(i, number) for i, number in new.items()]
        ids += [self._first_edge + e for e in edges]
        patterns += [self._edge(e, new) for e in edges]
        for g in layers:
            exchange, *waits = self._layer(g, new)
            if exchange is not self._patterns[self._first_layer + g]:
                ids += [self._first_layer + g, *self._waits_of[g]]
                patterns += [exchange, *waits]
            elif self.training:
                places = [self._place_of[i] for i in new if self._layer_of.get(i) == g]
                ids += [self._waits_of[g][k] for k in places]
                patterns += [waits[k] for k in places]
        return _Replaced(ids, patterns)

    def _edge(self, e: int, new: Mapping[int, int]) -> Pattern:
        (u, v, _), numbers = self.blocks.edges[e], self._numbers
        return self.blocks.edge(e, new.get(u, numbers[u]), new.get(v, numbers[v]))

    def _layer(self, g: int, new: Mapping[int, int]) -> list[Pattern]:
        numbers = [self._numbers[m] for m in self.blocks.layers[g].members]
        for i, number in new.items():
            if self._layer_of.get(i) == g:
                numbers[self._place_of[i]] = number
        return self.blocks.layer(g, numbers)
