"""Make the plain steps that compute operands of anchors, and what stands between anchors. Start at `Operands`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tvm import relax
from tvm.ir import Var

from tuner.graph.fusion.steps import PlainStep
from tuner.graph.ir.bindings import dtype_of, shape_of
from tuner.graph.ir.simplify import as_constant, constant


@dataclass(eq=False)
class Operands:
    """Makes plain steps, such as those that compute operands of an anchor's epilogue. `node` names the anchor."""

    node: str
    steps: list[PlainStep] = field(default_factory=list)

    def emit(self, value: Any) -> Var:
        """Add a step that computes a call of a Relax operator."""
        value = relax.BlockBuilder().normalize(value)
        out = relax.Var(f"{self.node}_{len(self.steps)}", value.ty)
        self.steps.append(PlainStep(self.node, value, out))
        return out

    def typed(self, expr: Any, dtype: str) -> Any:
        return expr if dtype_of(expr) == dtype else self.emit(relax.op.astype(expr, dtype))

    def shaped(self, expr: Any, shape: Sequence[int]) -> Any:
        return expr if shape_of(expr) == tuple(shape) else self.emit(relax.op.reshape(expr, shape))

    def along(self, expr: Any, channels: int) -> Any:
        """Return an expression of one value, or of one per channel, as a tensor with the shape (channels,)."""
        if prod(shape_of(expr) or ()) == channels:
            return self.shaped(expr, (channels,))
        return self.emit(relax.op.broadcast_to(self.shaped(expr, (1,)), (channels,)))

    def added(self, one: Any, other: Any) -> Any:
        """Return the sum of two expressions of the same shape. Constants are added at once."""
        if one is None:
            return other
        first, second = constant(one), constant(other)
        if first is not None and second is not None:
            return as_constant(first + second)
        return self.emit(relax.op.add(one, other))

    def multiplied(self, one: Any, other: Any) -> Any:
        """Return the product of two expressions of the same shape. Constants are multiplied at once."""
        first, second = constant(one), constant(other)
        if first is not None and second is not None:
            return as_constant(first * second)
        return self.emit(relax.op.multiply(one, other))
