"""Store a network's activations and weights in half precision. Start at `halved`.

Anchors get float16 workloads, and so do other operators that have a template for halves on every device. Every other
step reads and writes halves and is computed in float32 (see `plain.emit_plain`), except for steps that only move
or choose values. The network's own inputs and outputs stay float32: a step at each border stores the same value in the
other type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Var
from tvm.target import Target

from templates.cpu.isa import HALF
from templates.template import default_config
from tuner.errors import BadInput
from tuner.graph.fusion.steps import AnchorStep, FusedGraph, OperatorStep, PlainStep, Step, reads_of
from tuner.graph.ir.bindings import dtype_of, with_leaves
from tuner.graph.ir.simplify import as_constant, constant, is_call
from tuning_db.record import Workload

# These operators round nothing, whatever the type: they move values, or choose one.
_EXACT = (
    "broadcast_to", "concat", "expand_dims", "flatten", "flip", "nn.batch_flatten", "nn.max_pool2d", "nn.pad",
    "nn.relu", "permute_dims", "repeat", "reshape", "squeeze", "strided_slice", "tile",
)  # fmt: skip


def is_exact(value: Any) -> bool:
    """Return whether a plain step's value may be computed in the type that it is stored in."""
    return is_call(value, *_EXACT)


def halved(graph: FusedGraph, targets: Sequence[Target] = ()) -> FusedGraph:
    """Return the same network with every float32 value between its inputs and outputs stored as float16. `targets` are
    those of all devices that it may be computed on.

    Raises BadInput, naming the node, if a weight is beyond the largest half.
    """
    return _Halving(graph, targets).halved()


class _Halving:
    """Converts one graph for devices with `targets`. `_stored` maps a variable of the graph to the variable that holds
    its value as halves."""

    def __init__(self, graph: FusedGraph, targets: Sequence[Target]) -> None:
        self._graph, self._targets = graph, targets
        read = {var for step in graph.steps for var in reads_of(step)}
        made = [s.out for s in graph.steps if s.out in read or _makes_halves(s)]
        # A result that is computed in float32 and that no step reads goes to the caller without being rounded.
        held = [*(p for p in graph.parameters if p in read), *made]
        self._stored = {var: _half_variable(var) for var in held if dtype_of(var) == "float32"}

    def halved(self) -> FusedGraph:
        entering = [PlainStep(p.name, p, self._stored[p]) for p in self._graph.parameters if p in self._stored]
        steps = [self._step(s) for s in self._graph.steps]
        results = dict.fromkeys(o for o in self._graph.outputs if isinstance(o, Var) and self._is_made(o))
        leaving = [PlainStep(o.name, self._stored[o], o) for o in results]
        return replace(self._graph, steps=(*entering, *steps, *leaving), dtype=HALF)

    def _is_made(self, var: Var) -> bool:
        return var in self._stored and not any(var.same_as(p) for p in self._graph.parameters)

    def _step(self, step: Step) -> Step:
        if isinstance(step, AnchorStep):
            return self._anchor(step)
        return self._operator(step) if isinstance(step, OperatorStep) else self._plain(step)

    def _operator(self, step: OperatorStep) -> OperatorStep:
        """Let an operator read and write halves. Where its workload keeps its dtype, they are converted around it."""
        inputs, workload = tuple(self._stored.get(expr, expr) for expr in step.inputs), step.workload
        in_halves = replace(workload, dtype=HALF)
        if step.out in self._stored and self._has_templates(in_halves):
            inputs, workload = tuple(self._half(expr, step.node) for expr in step.inputs), in_halves
        return replace(step, inputs=inputs, out=self._stored.get(step.out, step.out), workload=workload)

    def _has_templates(self, workload: Workload) -> bool:
        """Tell whether there is a template of a workload for each device."""
        return bool(self._targets) and all(default_config(workload, t) is not None for t in self._targets)

    def _anchor(self, step: AnchorStep) -> AnchorStep:
        return replace(
            step,
            workload=replace(step.workload, dtype=HALF),
            data=self._half(step.data, step.node),
            extras=tuple(self._half(extra, step.node) for extra in step.extras),
            weight=_rounded(step.weight, step.node),
            bias=None if step.bias is None else _rounded(step.bias, step.node),
            out=self._stored[step.out],
        )

    def _plain(self, step: PlainStep) -> PlainStep:
        def leaf(expr: Any) -> Any:
            return self._half(expr, step.node) if is_exact(step.value) else self._stored.get(expr, expr)

        return replace(step, value=with_leaves(step.value, leaf), out=self._stored.get(step.out, step.out))

    def _half(self, expr: Any, node: str) -> Any:
        """Return the halves that hold a float32 variable or constant. Any other expression is returned unchanged."""
        value = constant(expr)
        if value is None:
            return self._stored.get(expr, expr) if isinstance(expr, Var) else expr
        return as_constant(_rounded(value, node)) if value.dtype == np.float32 else expr


def _makes_halves(step: Step) -> bool:
    return isinstance(step, AnchorStep) or (isinstance(step, PlainStep) and is_exact(step.value))


def _half_variable(var: Var) -> Var:
    return relax.Var(var.name, relax.TensorType(var.ty.shape, HALF))


def _rounded(array: np.ndarray, node: str) -> np.ndarray:
    largest = float(np.abs(array).max(initial=0.0))
    if largest > float(np.finfo(np.float16).max):
        raise BadInput(
            f"node {node!r}: a weight of {largest:.3g} is too large for half precision; build the network in float32"
        )
    return array.astype(np.float16)
