"""Converts a planned network for the simulator: its operators stay whole and take the times that were measured. Start
at `measured_network`.

The additive model (`placement.exact`) cannot see that devices work at the same time; the simulator can.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tuner.graph.layout.plan import Moving, Node, computing, moves_of
from tuner.studies.networks import Network, NetworkOperator
from tuner.studies.networks.operators import ALL, ITEM
from tuner.studies.simulator.costs import Measured
from tuner.studies.soap import PartConfig, Strategy
from tuner.studies.topology import DeviceSpec, Link, Memory, Topology


class Simulated(NamedTuple):
    """Holds the arguments of `Simulator`, and the plan's own placement as a strategy."""

    network: Network
    topology: Topology
    cost: Measured
    strategy: Strategy


@dataclass(frozen=True)
class Machine:
    """The machine that a planned network runs on.

    - `devices` holds the names of the devices.
    - `links` holds (source, target, latency in seconds, seconds per byte), as `Costs.link` returns them.
    - `cores` holds a name for each device, equal for devices that compute on the same cores (see
      `topology.DeviceSpec`). It is empty where no device shares any.
    """

    devices: Sequence[str]
    links: Sequence[tuple[int, int, float, float]]
    cores: Sequence[str] = ()


def measured_network(
    name: str,
    nodes: Sequence[Node],
    moving: Moving,
    *,
    states: Sequence[int],
    sizes: Sequence[int],
    machine: Machine,
) -> Simulated:
    """Return what `Simulator` takes for a planned network.

    - `nodes` and `moving` are those of `exact.NetworkPlan`, `states` those of its plan.
    - `sizes` holds the bytes of what each node makes.

    On the device that the plan gives it, an operator takes the plan's seconds. These include the layout transforms that
    are made for it first, less what a concatenation saves. On another device it takes its fastest state there, which
    saves nothing. A network's inputs are wherever they are read. No operator is split.

    A value that several operators read on a device that does not make it is copied there once. To this end they read an
    additional operator on that device that takes no time. A search may move that operator anywhere.
    """
    devices = machine.devices
    made = [node.states[state].makes for node, state in zip(nodes, states, strict=True)]
    own = _own_seconds(nodes, moving, states)
    kept = [i for i, node in enumerate(nodes) if node.operands]
    read = Counter((o, made[i].device) for i in kept for o in set(nodes[i].operands))
    given = _Given(devices)
    at: dict[tuple[int, int], int] = {}  # by node and device: the operator that readers on that device read
    for number, i in enumerate(kept):
        node, here = nodes[i], made[i].device
        seconds = [min((s.seconds for s in node.states if s.makes.device == d), default=math.inf) for d in given.every]
        seconds[here] = own[i]
        title = f"{number} {node.name}"  # names of steps need not be unique
        inputs = tuple(dict.fromkeys(at[o, here] for o in node.operands if (o, here) in at))
        maker = given.add(title, sizes[i], inputs, here, seconds)
        for d in given.every:
            shared = d != here and read[i, d] > 1
            at[i, d] = given.add(f"{title} on {d}", sizes[i], (maker,), d, [0.0] * len(devices)) if shared else maker
    network = Network(name, tuple(given.operators), tuple(o.name for o in given.operators), (0,) * len(given.operators))
    topology = _topology(name, machine, given.lacks)
    return Simulated(network, topology, Measured(given.table, {}), tuple(given.strategy))


def _own_seconds(nodes: Sequence[Node], moving: Moving, states: Sequence[int]) -> list[float]:
    """Return the seconds of every node, with those of the layout transforms that are made for it first."""
    moves = moves_of(nodes, moving, states)
    left = {(move.node, move.to): move.seconds for move in moves if move.before.device == move.to.device}
    found = list(computing(nodes, states))
    for i, (node, state) in enumerate(zip(nodes, states, strict=True)):
        found[i] += sum(left.pop(value, 0.0) for value in zip(node.operands, node.states[state].reads, strict=True))
    return found


class _Given:
    """Collects whole operators for `devices`, with their seconds on each device: infinity where a device cannot compute
    one."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices, self.every = devices, range(len(devices))
        self.operators: list[NetworkOperator] = []
        self.strategy: list[PartConfig] = []
        self.table: dict[tuple[str, str], float] = {}
        self.lacks = [set[str]() for _ in devices]

    def add(self, title: str, size: int, inputs: tuple[int, ...], device: int, seconds: Sequence[float]) -> int:
        """Add an operator and return its index."""
        shape = (max(size // ITEM, 1),)
        self.operators.append(NetworkOperator(title, title, shape, "-", inputs, tuple((ALL,) for _ in inputs)))
        self.strategy.append(PartConfig((1,), (device,)))
        for d, taken in zip(self.every, seconds, strict=True):
            if math.isinf(taken):
                self.lacks[d].add(title)
            else:
                self.table[title, self._devices[d]] = taken
        return len(self.operators) - 1


def _topology(name: str, machine: Machine, lacks: Sequence[Collection[str]]) -> Topology:
    """Return the topology of a machine. Peaks are unknown, and not needed as nothing is split."""
    devices, cores = machine.devices, machine.cores or [""] * len(machine.devices)
    each = zip(devices, lacks, cores, strict=True)
    specs = [DeviceSpec(d, d, 1.0, 1.0, d, 0.0, frozenset(no), on) for d, no, on in each]
    found = []
    for a, b, latency, rate in machine.links:
        bus = cores[a] if cores[a] == cores[b] else ""  # the cores that both devices use also make the copy
        found.append(Link(devices[a], devices[b], math.inf if rate == 0 else 1 / rate, latency, bus))
    return Topology(name, tuple(specs), tuple(Memory(d) for d in devices), tuple(found))
