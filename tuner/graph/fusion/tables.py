"""Compute functions of one quantised tensor by a table of all its 256 values. Start at `tables_of`.

A quantised network writes an activation such as x sigmoid(x) as several operators with a quantisation behind each. As
the tensor that they begin with has 256 values, so has what they compute, whose values are found here once. The numbers
are those of the operators, each rounded as it is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Var

from templates.integers import INTEGERS
from tuner.graph.fusion.activations import evaluate
from tuner.graph.ir.bindings import Bindings, dtype_of, operands, shape_of
from tuner.graph.ir.simplify import as_constant, is_call

EVERY = np.arange(256, dtype=np.uint8)
# Without one of these a function is cheaper than a table: arithmetic is fused with what is around it.
_COSTLY = (
    "erf", "exp", "log", "nn.gelu", "nn.gelu_tanh", "nn.silu", "power", "rsqrt", "sigmoid", "sqrt", "tanh",
)  # fmt: skip


def tables_of(graph: Bindings, claimed: Collection[int], read: Iterable[Any]) -> dict[int, Any]:
    """Return, by the index of a binding, the lookup that takes its place. `claimed` are the bindings that anchors
    compute, and `read` what anchors read."""
    functions = _Functions(graph, claimed)
    needed = {expr for expr in (*read, *graph.outputs) if isinstance(expr, Var)}
    found: dict[int, Any] = {}
    for i in reversed(range(len(graph.values))):
        out = graph.variables[i]
        if i in claimed or out not in needed:
            continue
        if functions.is_worth_a_table(out):
            table, source = as_constant(functions.values[out]), functions.sources[out]
            found[i] = relax.BlockBuilder().normalize(relax.op.take(table, source, axis=0, mode="fast"))
            needed.add(source)
        else:
            needed.update(a for a in operands(graph.values[i]) if isinstance(a, Var))
    return found


class _Functions:
    """Finds, for each variable that is a function of one tensor of uint8 value by value, this tensor (`sources`) and
    the function's 256 values (`values`)."""

    def __init__(self, graph: Bindings, claimed: Collection[int]) -> None:
        self.sources: dict[Var, Var] = {}
        self.values: dict[Var, np.ndarray] = {}
        self._costly: set[Var] = set()
        for i, (out, value) in enumerate(zip(graph.variables, graph.values, strict=True)):
            if i not in claimed:
                self._add(out, value)

    def is_worth_a_table(self, var: Var) -> bool:
        return var in self._costly and dtype_of(var) == INTEGERS

    def _add(self, out: Var, value: Any) -> None:
        read = {a for a in operands(value) if isinstance(a, Var)}
        sources = {self.sources.get(a, a) for a in read}
        if len(sources) != 1:
            return
        (source,) = sources
        if dtype_of(source) != INTEGERS or shape_of(source) is None or shape_of(out) != shape_of(source):
            return
        with np.errstate(all="ignore"):
            values = computed(value, {a: self.values.get(a, EVERY) for a in read})
        if values is not None:
            self.sources[out], self.values[out] = source, values
            if is_call(value, *_COSTLY) or read & self._costly:
                self._costly.add(out)


def computed(call: Any, known: Mapping[Var, np.ndarray]) -> np.ndarray | None:
    """Evaluate an operator in the type that it computes in. Return None if it is not point-wise, or if what it computes
    does not fit into the type."""
    dtype = dtype_of(call)
    values: np.ndarray | None
    if is_call(call, "astype"):
        values = known[call.args[0]]
    elif is_call(call, "round"):
        values = np.rint(known[call.args[0]])
    else:
        values = evaluate(call, known)
    if values is None or values.shape != EVERY.shape or dtype is None or dtype not in np.sctypeDict:
        return None
    typed = values.astype(dtype)
    is_whole = np.issubdtype(typed.dtype, np.integer)
    return None if is_whole and not np.array_equal(typed, np.trunc(values)) else typed
