"""Exact placement: device, layout and kernel of every step of a network together (`graph.layouts`), by measured costs.
Start at `plan_network`."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm.ir import Var

from templates.template import PLAIN, Layout
from tuner.devices import Device
from tuner.errors import BadInput
from tuner.graph import Alone, FusedGraph, Place, lower_alone
from tuner.graph.bindings import dtype_of, shape_of
from tuner.graph.choice import Choice
from tuner.graph.fuse import AnchorStep, PlainStep, Step, reads_of
from tuner.graph.layouts import Form, Moving, Node, Plan, State, plan
from tuner.placement.costs import Cost, Costs
from tuner.placement.fallback import alike
from tuning_db.record import Workload


@dataclass(frozen=True, eq=False)
class NetworkPlan:
    """`placement`: the device of each of the graph's steps; `blocks`: the layout that its plain steps are computed in;
    `nodes`: the network as the graph tuner saw it, inputs first, then steps, then results, between which `moving` moves
    values."""

    plan: Plan
    nodes: tuple[Node, ...]
    moving: Moving
    placement: tuple[int, ...]
    blocks: Mapping[Var, int]


def plan_network(
    graph: FusedGraph, devices: Sequence[Device], choices: Sequence[Mapping[Workload, Choice]], costs: Costs
) -> NetworkPlan:
    """The plan with the least seconds for a network on some devices, `choices` having the kernels of each.

    Raises BadInput where no device computes a step.
    """
    network = _Network(graph, devices, choices, costs)
    nodes, moving = network.nodes(), network.moving()
    found = plan(nodes, moving)
    first = len(graph.parameters)
    chosen = [nodes[i].states[found.states[i]] for i in range(first, first + len(graph.steps))]
    blocks = {
        step.out: max((form.layout.block for form in (*state.reads, state.makes)), default=0)
        for step, state in zip(graph.steps, chosen, strict=True)
        if isinstance(step, PlainStep)
    }
    return NetworkPlan(found, nodes, moving, tuple(s.makes.device for s in chosen), blocks)


def seconds_alone(found: NetworkPlan, device: int) -> float | None:
    """What the network takes if one of its plan's devices computes all of it; None where it cannot."""
    states = [tuple(s for s in n.states if s.makes.device == device and math.isfinite(s.seconds)) for n in found.nodes]
    if not all(states):
        return None
    return plan([replace(n, states=s) for n, s in zip(found.nodes, states, strict=True)], found.moving).seconds


class _Network:
    """A fused graph as nodes: its inputs, its steps, its results."""

    def __init__(
        self, graph: FusedGraph, devices: Sequence[Device], choices: Sequence[Mapping[Workload, Choice]], costs: Costs
    ) -> None:
        self._graph, self._devices, self._choices, self._costs = graph, devices, choices, costs
        self._places = [
            Place(d.target, {w: c.config for w, c in known.items()}) for d, known in zip(devices, choices, strict=True)
        ]
        self._variables = [*graph.parameters, *(step.out for step in graph.steps)]
        self._index = {v: i for i, v in enumerate(self._variables)}
        self._found: dict[Hashable, list[tuple[tuple[Layout, ...], Layout, Cost, str]]] = {}
        self._blocks = [self._blocks_on(device) for device in range(len(devices))]

    def nodes(self) -> tuple[Node, ...]:
        anywhere = [Form(d, PLAIN) for d in range(len(self._devices))]
        inputs = [Node(str(p.name), (), tuple(State((), f, 0.0) for f in anywhere)) for p in self._graph.parameters]
        results = [o for o in dict.fromkeys(self._graph.outputs) if isinstance(o, Var)]
        ends = [
            Node(f"result {o.name}", (self._index[o],), tuple(State((f,), f, 0.0) for f in anywhere)) for o in results
        ]
        return (*inputs, *map(self._node, self._graph.steps), *ends)

    def moving(self) -> Moving:
        return Moving(self._copied, self._transformed)

    def _copied(self, node: int, layout: Layout, source: int, target: int) -> float:
        return sum(self._costs.copy(size, source, target) for size in _sizes(self._variables[node].ty, layout))

    def _transformed(self, node: int, device: int, old: Layout, new: Layout) -> float:
        variable = self._variables[node]
        shape, dtype = shape_of(variable), dtype_of(variable)
        if shape is None or len(shape) != 4 or dtype is None:
            return math.inf
        return self._costs.transform(shape, dtype, device, old, new).seconds

    def _node(self, step: Step) -> Node:
        reads = list(dict.fromkeys(reads_of(step)))
        states = []
        for device in range(len(self._devices)):
            for wanted, makes, cost, kernel in self._ways(step, device):
                forms = tuple(Form(device, layout) for layout in wanted)
                states.append(State(forms, Form(device, makes), cost.seconds, kernel, cost.source))
        if not any(math.isfinite(s.seconds) for s in states):
            raise BadInput(f"node {step.node!r}: none of {', '.join(d.title for d in self._devices)} computes it")
        return Node(step.node, tuple(self._index[v] for v in reads), tuple(states))

    def _ways(self, step: Step, device: int) -> list[tuple[tuple[Layout, ...], Layout, Cost, str]]:
        """The layouts of what it reads and makes, what that costs, and the kernel; each way once."""
        reads = reads_of(step)
        # A convolution may add its own input or another value: the same workload with other operands.
        key = (device, alike(step), tuple(reads.index(v) for v in reads))
        if key not in self._found:
            ways: dict[tuple[tuple[Layout, ...], Layout], tuple[Cost, str]] = {}
            for block in self._blocks[device] if isinstance(step, PlainStep) else [None]:
                try:
                    alone = lower_alone(self._graph, step, self._places[device], block)
                except BadInput:
                    continue
                form = tuple(alone.reads[v] for v in dict.fromkeys(reads)), alone.makes
                if form not in ways:
                    ways[form] = self._cost(step, alone, device)
            self._found[key] = [(*form, *cost) for form, cost in ways.items()]
        return self._found[key]

    def _cost(self, step: Step, alone: Alone, device: int) -> tuple[Cost, str]:
        if isinstance(step, PlainStep):
            return self._costs.step(self._graph, step, alone, device), ""
        choice = self._choices[device][step.workload]
        kernel = "" if choice.config is None else choice.config.key
        if choice.seconds is not None:
            return Cost(choice.seconds, choice.source), kernel
        return self._costs.step(self._graph, step, alone, device, choice.config), kernel

    def _blocks_on(self, device: int) -> list[int]:
        """Plain, and the blocks that the anchors on a device read or make."""
        found = {0}
        for step in self._graph.steps:
            if isinstance(step, AnchorStep):
                for wanted, makes, _, _ in self._ways(step, device):
                    found.update(layout.block for layout in (*wanted, makes))
        return sorted(found)


def _sizes(ty: Any, layout: Layout) -> list[int]:
    """Bytes of the tensors of a value."""
    if hasattr(ty, "fields"):
        return [size for field in ty.fields for size in _sizes(field, PLAIN)]
    shape = [int(s) for s in ty.shape]
    item = {"bool": 1}.get(str(ty.dtype)) or int("".join(c for c in str(ty.dtype) if c.isdigit())) // 8
    return [math.prod(layout.shape(shape)) * item]
