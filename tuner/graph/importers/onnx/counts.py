"""Follow a number of results that depends on the values through ONNX operators. Start at `axis_behind`.

Some shapes in ONNX are known only when a network runs. Here such a tensor has its largest length, and the operators
behind it compute all of it. That is right as long as every valid entry of a result depends only on valid entries, and
along the counted axis only on the entry with its own index. Otherwise the network is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.graph.ir.bindings import shape_of
from tuner.graph.ir.simplify import constant

# Every entry of a result of these depends only on the entries at the same position.
_ELEMENTWISE = frozenset(
    (
        "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Equal", "Exp", "Floor", "Greater", "GreaterOrEqual",
        "HardSigmoid", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Not",
        "Or", "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sqrt", "Sub", "Tanh", "Where",
    )
)  # fmt: skip


class Uncountable(ValueError):
    """Raised if the number of results cannot be followed through a node. The message says why."""


@dataclass(frozen=True)
class Node:
    """An ONNX node that is to be followed, with its operands and attributes. `axes` has the counted axis of every
    operand, or None if the operand is not counted."""

    op: str
    inputs: Sequence[Any]
    attrs: Mapping[str, Any]
    axes: Sequence[int | None]

    def rank(self, i: int) -> int:
        return len(self.inputs[i].ty.shape)

    def axis(self, rank: int, default: int = 0) -> int:
        return int(self.attrs.get("axis", default)) % rank

    def ints(self, name: str, i: int) -> list[int] | None:
        """Return a list that is an attribute in old operator sets and an operand in new ones. Return None if it is left
        out. Raises Uncountable if the operand is not a constant."""
        if name in self.attrs:
            return [int(v) for v in self.attrs[name]]
        if len(self.inputs) <= i or self.inputs[i] is None:
            return None
        array = constant(self.inputs[i])
        if array is None:
            raise Uncountable(f"its {name} are not constant")
        return [int(v) for v in np.asarray(array).reshape(-1)]


def axis_behind(node: Node, results: Sequence[Any]) -> int:
    """Return the axis of all results that has as many valid entries as the counted axes of the operands. Raises
    Uncountable if there is no such axis."""
    if node.op in _ELEMENTWISE:
        return _elementwise(node, results[0])
    rule = _RULES.get(node.op)
    if rule is None:
        raise Uncountable("its result depends on entries that may not be there")
    return rule(node, results[0])


def _elementwise(node: Node, result: Any) -> int:
    rank = len(result.ty.shape)
    found = {rank - node.rank(i) + axis for i, axis in enumerate(node.axes) if axis is not None}
    if len(found) > 1:
        raise Uncountable("its operands are counted along different axes")
    return found.pop()


def _only_first(node: Node) -> int:
    axis = node.axes[0]
    if axis is None or any(a is not None for a in node.axes[1:]):
        raise Uncountable("an operand besides the first is counted")
    return axis


def _other_than(axis: int, touched: Sequence[int]) -> int:
    if axis in touched:
        raise Uncountable(f"it changes axis {axis}, whose length depends on the values")
    return axis


def _gather(node: Node, _result: Any) -> int:
    along = node.axis(node.rank(0))
    if node.axes[0] is None:
        index_axis = node.axes[1]
        assert index_axis is not None
        return along + index_axis
    axis = _other_than(_only_first(node), [along])
    return axis if axis < along else axis + node.rank(1) - 1


def _gather_nd(node: Node, _result: Any) -> int:
    axis = node.axes[1]
    if node.axes[0] is not None or axis is None or node.attrs.get("batch_dims", 0):
        raise Uncountable("what it reads from is counted")
    return _other_than(axis, [node.rank(1) - 1])


def _squeeze(node: Node, _result: Any) -> int:
    axis, rank, shape = _only_first(node), node.rank(0), shape_of(node.inputs[0])
    axes = node.ints("axes", 1)
    gone = [a % rank for a in axes] if axes is not None else [i for i, size in enumerate(shape or ()) if size == 1]
    return _other_than(axis, gone) - sum(a < axis for a in gone)


def _unsqueeze(node: Node, result: Any) -> int:
    axis, rank = _only_first(node), len(result.ty.shape)
    new = {a % rank for a in node.ints("axes", 1) or ()}
    return [i for i in range(rank) if i not in new][axis]


def _slice(node: Node, _result: Any) -> int:
    starts, axes = node.ints("starts", 1), node.ints("axes", 3)
    touched = axes if axes is not None else range(len(starts or ()))
    return _other_than(_only_first(node), [a % node.rank(0) for a in touched])


def _split(node: Node, _result: Any) -> int:
    return _other_than(_only_first(node), [node.axis(node.rank(0))])


def _concat(node: Node, _result: Any) -> int:
    axes = set(node.axes)
    axis = axes.pop()
    if axis is None or axes:
        raise Uncountable("its operands are not all counted along one axis")
    return _other_than(axis, [node.axis(node.rank(0))])


def _transpose(node: Node, _result: Any) -> int:
    rank = node.rank(0)
    return [int(a) for a in node.attrs.get("perm", range(rank)[::-1])].index(_only_first(node))


def _reshape(node: Node, result: Any) -> int:
    axis, before, after = _only_first(node), shape_of(node.inputs[0]), shape_of(result)
    if before is None or after is None or before[: axis + 1] != after[: axis + 1]:
        raise Uncountable(f"it does not keep axis {axis}, whose length depends on the values")
    return axis


_RULES: dict[str, Callable[[Node, Any], int]] = {
    "Concat": _concat,
    "Flatten": _reshape,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
