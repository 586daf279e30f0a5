"""Exact placement chooses device, layout and kernel of every step of a network together (`graph.layout.plan`), by
measured costs. Start at `plan_network`."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from tvm.ir import Var

from templates.template import PLAIN, Layout
from tuner.activity import activity
from tuner.devices import Device
from tuner.errors import BadInput
from tuner.graph import Alone, DevicePlan, FusedGraph, lower_alone
from tuner.graph.fusion.steps import AnchorStep, PlainStep, Step, reads_of
from tuner.graph.ir.bindings import dtype_of, shape_of
from tuner.graph.ir.simplify import is_call
from tuner.graph.layout.choice import Choice, Planned, Source
from tuner.graph.layout.plan import Form, Moving, Node, Plan, State, plan
from tuner.placement.fallback import alike
from tuner.placement.memory import sizes_of
from tuner.placement.memory_limit import placement_of, within_memory
from tuner.placement.step_costs import Cost, Costs
from tuning_db.record import Config, Workload

Rivals = Mapping[Workload, Sequence[Choice]]


@dataclass(frozen=True, eq=False)
class NetworkPlan:
    """A network with its plan. `planned` is what to build, and `plan` says what that takes. `nodes` are the network as
    the graph tuner saw it: first inputs, then steps, then results. `moving` says what moving values between nodes
    takes."""

    plan: Plan
    nodes: tuple[Node, ...]
    moving: Moving
    planned: Planned


def plan_network(graph: FusedGraph, devices: Sequence[Device], choices: Sequence[Rivals], costs: Costs) -> NetworkPlan:
    """Return the plan with the least seconds for a network on some devices. `choices` has the kernels of each device,
    of which every step gets one. Where the plan needs more memory than a device has, see `memory_limit.within_memory`.

    Raises BadInput where no device computes a step, and where no plan fits into the devices' memory.
    """
    network = _Network(graph, devices, choices, costs)
    nodes, moving = network.nodes(), network.moving()
    with activity("planning, and timing what moves between steps"):
        found = within_memory(graph, devices, nodes, moving=moving, free=plan(nodes, moving))
    return NetworkPlan(found, nodes, moving, planned_states(graph, nodes, found.states))


def planned_states(graph: FusedGraph, nodes: Sequence[Node], states: Sequence[int]) -> Planned:
    """Return what to build where each node of a `NetworkPlan` is in the state with the given index."""
    blocks: dict[Var, int] = {}
    kernels: dict[Var, Choice] = {}
    chosen = [node.states[state] for node, state in zip(nodes, states, strict=True)][len(graph.parameters) :]
    for step, state in zip(graph.steps, chosen, strict=False):  # the results follow the steps
        if isinstance(step, PlainStep):
            blocks[step.out] = max((form.layout.block for form in (*state.reads, state.makes)), default=0)
        else:
            config = Config.from_dict(json.loads(state.kernel)) if state.kernel else None
            kernels[step.out] = Choice(config, cast(Source, state.source), state.seconds)
    return Planned(placement_of(graph, nodes, states), blocks, kernels)


def seconds_alone(found: NetworkPlan, device: int) -> float | None:
    """Return the seconds that the network takes if one of its plan's devices computes all of it, or None where that
    device cannot."""
    states = [tuple(s for s in n.states if s.makes.device == device and math.isfinite(s.seconds)) for n in found.nodes]
    if not all(states):
        return None
    return plan([replace(n, states=s) for n, s in zip(found.nodes, states, strict=True)], found.moving).seconds


class _Network:
    """Describes a fused graph as nodes: its inputs, its steps, its results."""

    def __init__(self, graph: FusedGraph, devices: Sequence[Device], choices: Sequence[Rivals], costs: Costs) -> None:
        self._graph, self._devices, self._choices, self._costs = graph, devices, choices, costs
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
        steps = []
        with activity("timing steps that the database lacks", len(self._graph.steps)) as done:
            for step in self._graph.steps:
                steps.append(self._node(step))
                done(len(steps))
        return (*inputs, *steps, *ends)

    def moving(self) -> Moving:
        return Moving(self._copied, self._transformed)

    def _copied(self, node: int, layout: Layout, source: int, target: int) -> float:
        return sum(self._costs.copy(size, source, target) for size in sizes_of(self._variables[node].ty, layout))

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
                saves = _saves(step, makes, cost.seconds)
                fills = isinstance(step, AnchorStep) and bool(makes.block)
                states.append(State(forms, Form(device, makes), cost.seconds, kernel, cost.source, saves, fills))
        if not any(math.isfinite(s.seconds) for s in states):
            raise BadInput(f"node {step.node!r}: none of {', '.join(d.title for d in self._devices)} computes it")
        return Node(step.node, tuple(self._index[v] for v in reads), tuple(states))

    def _ways(self, step: Step, device: int) -> list[tuple[tuple[Layout, ...], Layout, Cost, str]]:
        """Return how a device can compute a step. Each entry has the layouts that it reads and makes, the cost, and the
        kernel; no two entries have the same layouts."""
        reads = reads_of(step)
        # A convolution may add its own input or another value: the same workload with other operands.
        key = (device, alike(step), tuple(reads.index(v) for v in reads))
        if key not in self._found:
            ways: dict[tuple[tuple[Layout, ...], Layout], tuple[Cost, str]] = {}
            for alone, choice in self._lowered(step, device):
                form = tuple(alone.reads[v] for v in dict.fromkeys(reads)), alone.makes
                if form not in ways:
                    ways[form] = self._cost(step, alone, device, choice)
            self._found[key] = [(*form, *cost) for form, cost in ways.items()]
        return self._found[key]

    def _lowered(self, step: Step, device: int) -> Iterator[tuple[Alone, Choice | None]]:
        """Lower a step for a device: a plain step in every block, any other step with every kernel, the best first."""
        target = self._devices[device].target
        ways: list[tuple[DevicePlan, int | None, Choice | None]]
        if isinstance(step, PlainStep):
            ways = [(DevicePlan(target, {}), block, None) for block in self._blocks[device]]
        else:
            ways = [
                (DevicePlan(target, {step.workload: c.config}), None, c) for c in self._choices[device][step.workload]
            ]
        for device_plan, block, choice in ways:
            try:
                yield lower_alone(self._graph, step, device_plan, block), choice
            except BadInput:
                continue  # not on this device, or not in this block or with this kernel

    def _cost(self, step: Step, alone: Alone, device: int, choice: Choice | None) -> tuple[Cost, str]:
        if choice is None:
            return self._costs.step(self._graph, step, alone, device), ""
        kernel = "" if choice.config is None else choice.config.key
        if (known := self._costs.in_network(alone, device)) is not None:
            return known, kernel
        if choice.seconds is not None:
            return Cost(choice.seconds, choice.source), kernel
        return self._costs.step(self._graph, step, alone, device, choice.config), kernel

    def _blocks_on(self, device: int) -> list[int]:
        """Return the blocks of layouts on a device: 0 for plain, and those that the device's anchors read or make."""
        found = {0}
        for step in self._graph.steps:
            if isinstance(step, AnchorStep):
                for wanted, makes, _, _ in self._ways(step, device):
                    found.update(layout.block for layout in (*wanted, makes))
        return sorted(found)


def _saves(step: Step, makes: Layout, seconds: float) -> tuple[float, ...]:
    """Return the seconds that a concatenation saves for each variable that is written in place (see
    `graph.lowering.concat`): the variable's share of the whole."""
    if not makes.block or not isinstance(step, PlainStep) or not is_call(step.value, "concat"):
        return ()
    if int(step.value.attrs.axis) % 4 != 1:
        return ()
    parts = [shape_of(part) for part in step.value.args[0].fields]
    channels = [shape[1] for shape in parts if shape is not None]
    each = zip(step.value.args[0].fields, channels, strict=True)
    shares = {part: n / sum(channels) for part, n in each if isinstance(part, Var)}
    return tuple(seconds * shares[v] for v in dict.fromkeys(reads_of(step)))
