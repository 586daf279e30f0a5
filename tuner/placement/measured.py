"""A planned network for the simulator: its operators whole, with what was measured of them (the tuning database). Start
at `measured_network`.

The additive model (`placement.exact`) cannot see that devices work at the same time; the simulator can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tuner.graph.layouts import Moving, Node, computing
from tuner.placement.networks import Network, Operator
from tuner.placement.networks.operators import ALL, ITEM
from tuner.placement.simulator.costs import Measured
from tuner.placement.soap import Config, Strategy
from tuner.placement.topology import DeviceSpec, Link, Memory, Topology


class Simulated(NamedTuple):
    """What `Simulator` takes, and the plan's own placement."""

    network: Network
    topology: Topology
    cost: Measured
    strategy: Strategy


def measured_network(
    name: str,
    nodes: Sequence[Node],
    moving: Moving,
    states: Sequence[int],
    sizes: Sequence[int],
    devices: Sequence[str],
    links: Sequence[tuple[int, int, float, float]],
    cores: Sequence[str] = (),
) -> Simulated:
    """`nodes`, `moving` and the plan's `states` as in `exact.NetworkPlan`; `sizes`: bytes of what each node makes;
    `devices`: their names; `links`: source, target, latency in seconds, seconds per byte, as `Costs.link` has them;
    `cores`: of each device, equal for those that compute on the same ones (see `topology.DeviceSpec`).

    On the device that the plan gives it, an operator takes what the plan says, with the transforms of layouts before
    it, and what a concatenation saves taken off; on another one, its fastest state there, which saves nothing. A
    network's inputs are where they are read. No operator is split.
    """
    taken = computing(nodes, states)
    made = [node.states[state].makes for node, state in zip(nodes, states, strict=True)]
    kept = [i for i, node in enumerate(nodes) if node.operands]
    place = {i: k for k, i in enumerate(kept)}
    operators, table, lacks = [], {}, [set[str]() for _ in devices]
    for i in kept:
        node = nodes[i]
        title = f"{place[i]} {node.name}"  # names of steps need not differ
        inputs = tuple(dict.fromkeys(place[o] for o in node.operands if o in place))
        shape = (max(sizes[i] // ITEM, 1),)
        operators.append(Operator(title, title, shape, "-", inputs, tuple((ALL,) for _ in inputs)))
        for d, device in enumerate(devices):
            seconds = min((s.seconds for s in node.states if s.makes.device == d), default=math.inf)
            if d == made[i].device:
                chosen = node.states[states[i]]
                wanted = [(o, made[o].layout, r.layout) for o, r in zip(node.operands, chosen.reads, strict=True)]
                moved = [moving.transform(o, d, old, new) for o, old, new in dict.fromkeys(wanted) if old != new]
                seconds = taken[i] + sum(moved)
            if math.isinf(seconds):
                lacks[d].add(title)
            else:
                table[title, device] = seconds
    network = Network(name, tuple(operators), tuple(o.name for o in operators), (0,) * len(operators))
    topology = _topology(name, devices, lacks, links, cores or [""] * len(devices))
    strategy = tuple(Config((1,), (made[i].device,)) for i in kept)
    return Simulated(network, topology, Measured(table, {}), strategy)


def _topology(
    name: str,
    devices: Sequence[str],
    lacks: Sequence[set[str]],
    links: Sequence[tuple[int, int, float, float]],
    cores: Sequence[str],
) -> Topology:
    """Peaks are not known, and not needed: nothing is split."""
    each = zip(devices, lacks, cores, strict=True)
    specs = [DeviceSpec(d, d, 1.0, 1.0, d, 0.0, frozenset(no), on) for d, no, on in each]
    found = []
    for a, b, latency, rate in links:
        bus = cores[a] if cores[a] == cores[b] else ""  # the cores that both compute on also copy
        found.append(Link(devices[a], devices[b], math.inf if rate == 0 else 1 / rate, latency, bus))
    return Topology(name, tuple(specs), tuple(Memory(d) for d in devices), tuple(found))
