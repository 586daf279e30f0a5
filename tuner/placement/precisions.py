"""Chooses which anchors of a quantised network are computed in float32, because that takes less time. Start at
`choose_precisions`.

An anchor has two states: in integers it reads and makes bytes, in float32 real numbers. Its result in float32 is
rounded where it is read, to bytes or to whole numbers in float32: it is converted once for all that read it in one
form. `layout.plan` finds the states with the least sum of kernels and conversions, over
the whole network: it is the graph tuner, with forms of numbers in place of devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from statistics import median

from tvm.ir import Var

from templates.cpu.dot_products import products_of
from templates.cpu.isa import vector_unit
from templates.integers import INTEGERS
from templates.template import PLAIN
from templates.workloads import Conv2d, anchor_of, flop_of, kind_of
from tuner.devices import Device
from tuner.graph import AnchorStep, FusedGraph, float_form
from tuner.graph.fusion.steps import PlainStep, Step, reads_of
from tuner.graph.ir.bindings import shape_of
from tuner.graph.ir.simplify import is_call
from tuner.graph.layout.choice import Choice, choose
from tuner.graph.layout.plan import Form, Moving, Node, State, moves_of, plan
from tuner.placement.conversions import TYPES, Conversions, conversions_of
from tuner.precision import Precision
from tuning_db.record import Workload
from tuning_db.store import Store

# How a value is held: as bytes, as the same numbers in float32, or as what an anchor in float32 makes, before rounding.
BYTES, WHOLE, REAL = (Form(form, PLAIN) for form in range(3))
PASS = "pass"  # the name of data that a pass over memory makes, which converts them as well
LEAST = 3  # workloads of a kind that are needed to know the rate of its kernels
_CYCLES = 2e9  # a second, where no rate is known; a vector of sums is multiplied and added in each
_WINOGRAD = 2.0  # by how much Winograd's algorithm is faster there


def choose_precisions(
    graph: FusedGraph, device: Device, store: Store | None, exact: bool = False
) -> tuple[Precision, ...]:
    """Return the precision of each anchor of integers that takes the least time on a device. `exact` leaves out
    templates that round differently (Winograd).

    Times are those of the database. Where it lacks one of an anchor's two, they are estimated. Raises DatabaseError if
    the store cannot be read.
    """
    forms = {s.out: form.workload for s in graph.anchors if (form := float_form(s)) is not None}
    both = [w for s in graph.anchors if s.out in forms for w in (s.workload, forms[s.out])]
    times = _Times(choose(both, device, store, exact), _Rates(device, store, exact))
    conversions = conversions_of(store, device)
    network = _Network(
        graph, {s.out: times.of(s.workload, forms[s.out]) for s in graph.anchors if s.out in forms}, conversions
    )

    def converted(node: int, _layout: object, made: int, wanted: int) -> float:
        count, in_pass = network.counts[node], network.nodes[node].name == PASS
        seconds = conversions.seconds(count, TYPES[wanted], in_pass=in_pass)
        if (made, wanted) == (REAL.device, WHOLE.device):  # both conversions in one pass
            seconds += conversions.seconds(count, INTEGERS, in_pass=True)
        return seconds

    moving = Moving(converted, lambda *_: 0.0)
    states = plan(network.nodes, moving).states
    return tuple(_precision(step, network, moving, states) for step in graph.anchors if step.workload.dtype == INTEGERS)


@dataclass(frozen=True)
class _Both:
    """The seconds of an anchor in integers and in float32, and where they are from."""

    integers: float
    floats: float
    source: str


class _Times:
    """Tells the seconds of both forms of an anchor, by what was chosen for their workloads."""

    def __init__(self, choices: Mapping[Workload, Choice], rates: _Rates) -> None:
        self._choices, self._rates = choices, rates

    def of(self, integers: Workload, floats: Workload) -> _Both:
        """Return both seconds. If only one is measured, the other is in the ratio of the estimates to it."""
        known = [self._measured(integers), self._measured(floats)]
        if known[0] is not None and known[1] is not None:
            return _Both(known[0], known[1], "measured")
        guessed = [self._rates.seconds(integers), self._rates.seconds(floats)]
        factor = next((k / g for k, g in zip(known, guessed, strict=True) if k is not None), 1.0)
        return _Both(guessed[0] * factor, guessed[1] * factor, "estimated")

    def _measured(self, workload: Workload) -> float | None:
        choice = self._choices[workload]
        return choice.seconds if choice.source == "device" else None


class _Rates:
    """Estimates the seconds of anchors, by the rates of the kernels that the database has of their kind. Where these
    are fewer than `LEAST`, instructions are counted."""

    def __init__(self, device: Device, store: Store | None, exact: bool) -> None:
        self._device, self._exact = device, exact
        found: dict[tuple[str, str], list[float]] = defaultdict(list)
        for workload in () if store is None else store.workloads(device.key):
            flop = flop_of(workload) if workload.dtype in TYPES else None
            best = store.best(workload, device.key) if store is not None and flop else None
            if flop and best is not None:
                found[kind_of(workload), workload.dtype].append(flop / best.seconds)
        self._known = {kind: median(rates) for kind, rates in found.items() if len(rates) >= LEAST}

    def seconds(self, workload: Workload) -> float:
        kind = kind_of(workload)
        pair = [self._known.get((kind, dtype)) for dtype in TYPES]
        known = self._known.get((kind, workload.dtype)) if None not in pair else None
        return (flop_of(workload) or 0.0) / (known or self._counted(workload))

    def _counted(self, workload: Workload) -> float:
        """Return the operations a second of a kernel that keeps the vector unit busy."""
        target, anchor = self._device.target, anchor_of(workload)
        rate = 2 * vector_unit(target).lanes * self._device.threads * _CYCLES
        products = products_of(target) if workload.dtype == INTEGERS else None
        is_square = isinstance(anchor, Conv2d) and (anchor.kernel, anchor.strides) == ((3, 3), (1, 1))
        is_dense = not isinstance(anchor, Conv2d) or anchor.groups == 1
        if products is not None and is_dense:
            rate *= products.held.group
        pairs = products is None or products.held.data == "int16"  # Winograd's algorithm has sums beyond bytes
        return rate * (_WINOGRAD if is_square and is_dense and pairs and not self._exact else 1.0)


class _Network:
    """Describes a graph as nodes: the anchors that have two states, what makes the data of these, and what else reads
    their results. `counts` has the number of values that each node makes."""

    def __init__(self, graph: FusedGraph, times: Mapping[Var, _Both], conversions: Conversions) -> None:
        self.times, self.index, self._conversions = times, dict[Var, int](), conversions
        self._passes = {s.out for s in graph.steps if isinstance(s, PlainStep) and is_call(s.value, "astype")}
        self.nodes: list[Node] = []
        self.counts: list[int] = []
        for step in graph.anchors:
            if step.out in times:
                self._add_anchor(step)
        read = [v for s in graph.steps for v in self._read_as_made(s)]
        read += [o for o in graph.outputs if isinstance(o, Var)]
        for var in dict.fromkeys(read):
            if var in times and var in self.index and _is_quantised(self.nodes[self.index[var]]):
                self._add(var, Node("others", (self.index[var],), (State((BYTES,), BYTES, 0.0),)))

    def _read_as_made(self, step: Step) -> list[Var]:
        """Return what a step reads as the file says, which is not the data of an anchor with two states."""
        if isinstance(step, AnchorStep) and step.out in self.times:
            return [v for v in step.extras if isinstance(v, Var)]
        return reads_of(step)

    def _add(self, var: Var, node: Node) -> int:
        self.nodes.append(node)
        self.counts.append(prod(shape_of(var) or (1,)))
        return len(self.nodes) - 1

    def _add_anchor(self, step: AnchorStep) -> None:
        if step.data not in self.index:
            name = PASS if step.data in self._passes else "data"
            self.index[step.data] = self._add(step.data, Node(name, (), (State((), BYTES, 0.0),)))
        both = self.times[step.out]
        sums = step.workload.epilogue.count("quantize") > 1  # with bytes, in a pass behind the kernel in float32
        more = self._conversions.seconds(prod(shape_of(step.out) or (1,)), INTEGERS) if sums else 0.0
        # What is not quantised is the same in both.
        made = REAL if step.workload.epilogue[-1] == "quantize" and not sums else BYTES
        states = State((BYTES,), BYTES, both.integers), State((WHOLE,), made, both.floats + more)
        self.index[step.out] = self._add(step.out, Node(step.node, (self.index[step.data],), states))


def _is_quantised(node: Node) -> bool:
    return node.states[-1].makes == REAL


def _precision(step: AnchorStep, network: _Network, moving: Moving, states: Sequence[int]) -> Precision:
    if step.out not in network.times:
        return Precision(step.node, False, "float32 has no form of its scales and offsets", "file")
    at, both = network.index[step.out], network.times[step.out]
    in_float = bool(states[at])
    each = [_moved(network, moving, [*states[:at], state, *states[at + 1 :]]) for state in (0, 1)]
    if in_float:
        why = "float32 takes less"
    elif both.floats < both.integers:
        why = "the conversions take more than float32 saves"
    else:
        why = "integers take less"
    return Precision(step.node, in_float, why, both.source, both.integers, both.floats, each[1] - each[0])


def _moved(network: _Network, moving: Moving, states: Sequence[int]) -> float:
    return sum(move.seconds for move in moves_of(network.nodes, moving, states))
