"""Finds plans that fit into the memory of their devices. Start at `within_memory`.

Memory is given a price, in seconds per byte, that rises until the cheapest plan fits (Lagrangian relaxation: Everett,
Operations Research 11, 1963). Between that plan and the last one that did not fit, equal steps change all at once. So
plans are tried, too, that place the first steps as one of the two does and the others as the other does. The fastest
plan that fits is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tuner.devices import Device
from tuner.errors import BadInput
from tuner.graph import FusedGraph
from tuner.graph.layout.plan import Moving, Node, Plan, plan, plan_of, seconds_of
from tuner.placement.memory import bytes_of, memory_on, weights_of

_DOUBLINGS, _HALVINGS = 60, 20  # of the price: until a plan fits, and then to find the least such price
_CUTS = 64  # the most places at which two plans are cut to be put together


def within_memory(
    graph: FusedGraph, devices: Sequence[Device], nodes: Sequence[Node], *, moving: Moving, free: Plan
) -> Plan:
    """Return `free`, the best plan, if it fits into the devices' `memory_bytes`. Otherwise return the best plan that is
    found to fit, with the bound of `free`. For `nodes` see `exact.NetworkPlan`.

    Raises BadInput where none fits.
    """
    if _fits(graph, devices, nodes, free.states):
        return free
    over, under = free.states, free.states
    low, high = 0.0, free.seconds / max(1, sum(map(weights_of, graph.steps)))
    for _ in range(_DOUBLINGS):
        under = _priced(graph, devices, nodes, moving=moving, price=high)
        if _fits(graph, devices, nodes, under):
            break
        over, low, high = under, high, 2 * high
    else:
        sizes = ", ".join(f"{d.title}: {d.memory_bytes >> 20} MiB" for d in devices if d.memory_bytes is not None)
        raise BadInput(f"{graph.model.name}: no plan fits into the memory of its devices ({sizes}); name the CPU, too")
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = _priced(graph, devices, nodes, moving=moving, price=middle)
        if _fits(graph, devices, nodes, found):
            under, high = found, middle
        else:
            over, low = found, middle
    cuts = _cut(graph, devices, nodes, moving=moving, ends=(over, under))
    states = min([under, *cuts], key=lambda s: seconds_of(nodes, moving, s))
    return plan_of(nodes, moving, states, bound=free.bound, width=free.width)


def _cut(
    graph: FusedGraph,
    devices: Sequence[Device],
    nodes: Sequence[Node],
    *,
    moving: Moving,
    ends: tuple[Sequence[int], Sequence[int]],
) -> Iterator[tuple[int, ...]]:
    """Yield the best plans that fit and that place the first steps as one of two plans does, and the others as the
    other does."""
    placements = [placement_of(graph, nodes, states) for states in ends]
    differ = [i for i, (a, b) in enumerate(zip(*placements, strict=True)) if a != b]
    for one, other in (placements, placements[::-1]):
        for at in differ[:: -(-len(differ) // _CUTS)] if differ else ():
            states = _placed(graph, nodes, moving, [*one[:at], *other[at:]])
            if _fits(graph, devices, nodes, states):
                yield states


def placement_of(graph: FusedGraph, nodes: Sequence[Node], states: Sequence[int]) -> list[int]:
    """Return the device of each step."""
    first = len(graph.parameters)
    chosen = [node.states[state] for node, state in zip(nodes, states, strict=True)]
    return [state.makes.device for state in chosen[first : first + len(graph.steps)]]


def _placed(graph: FusedGraph, nodes: Sequence[Node], moving: Moving, placement: Sequence[int]) -> tuple[int, ...]:
    """Return the states of the best plan that has every step on its device of `placement`."""
    kept = list(nodes)
    for i, device in enumerate(placement, len(graph.parameters)):
        states = (s if s.makes.device == device else replace(s, seconds=math.inf) for s in nodes[i].states)
        kept[i] = replace(nodes[i], states=tuple(states))
    return plan(kept, moving).states


def _fits(graph: FusedGraph, devices: Sequence[Device], nodes: Sequence[Node], states: Sequence[int]) -> bool:
    placement = placement_of(graph, nodes, states)
    return all(
        device.memory_bytes is None or memory_on(graph, placement, i) <= device.memory_bytes
        for i, device in enumerate(devices)
    )


def _priced(
    graph: FusedGraph, devices: Sequence[Device], nodes: Sequence[Node], *, moving: Moving, price: float
) -> tuple[int, ...]:
    """Return the states of the best plan if every byte on a device with a limit costs `price` seconds."""
    first = len(graph.parameters)
    priced = list(nodes)
    for i, step in enumerate(graph.steps, first):
        cost = price * (weights_of(step) + bytes_of(step.out.ty))
        states = [
            s if devices[s.makes.device].memory_bytes is None else replace(s, seconds=s.seconds + cost)
            for s in nodes[i].states
        ]
        priced[i] = replace(nodes[i], states=tuple(states))
    return plan(priced, moving).states
