"""`Bindings` presents a dataflow function as a list of its bindings, and says which of them read each variable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, Var

OUTPUT = 1 << 30  # stands for the function's result among the indices of a variable's users


def operands(value: Any) -> list[Any]:
    """Return the expressions that a value reads, with tuples flattened."""
    if isinstance(value, Call):
        return [leaf for arg in value.args for leaf in operands_of(arg)]
    return operands_of(value)


def operands_of(expr: Any) -> list[Any]:
    """Return the leaves of an expression that may be a tuple or an element of a tuple."""
    if isinstance(expr, relax.Tuple):
        return [leaf for item in expr.fields for leaf in operands_of(item)]
    if isinstance(expr, relax.TupleGetItem):
        return operands_of(expr.tuple_value)
    return [expr]


def shape_of(expr: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor expression, or None if it is not static."""
    ty = expr.ty
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return None
    if not all(isinstance(s, tvm.tirx.IntImm) for s in ty.shape):
        return None
    return tuple(int(s) for s in ty.shape)


def dtype_of(expr: Any) -> str | None:
    """Return the dtype of an expression, or None if it is no tensor."""
    ty = expr.ty
    return str(ty.dtype) if isinstance(ty, relax.TensorType) else None


def reshaped(builder: relax.BlockBuilder, expr: Any, shape: Sequence[int] | None) -> Any:
    """Emit the same values with another shape. An expression that has the shape, or gets none, is returned as it is."""
    if shape is None or shape_of(expr) == tuple(shape):
        return expr
    return builder.emit(relax.op.reshape(expr, shape))


def with_leaves(expr: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return an expression with `leaf` applied to everything in it that is neither a tuple, an element of one nor a
    call."""
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([with_leaves(item, leaf) for item in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(with_leaves(expr.tuple_value, leaf), expr.index)
    if isinstance(expr, Call):
        return Call(expr.op, [with_leaves(arg, leaf) for arg in expr.args], expr.attrs, expr.ty_args)
    return leaf(expr)


def renamed(expr: Any, new: Mapping[Var, Any]) -> Any:
    """Return an expression with `new`'s expressions in place of its variables."""
    return with_leaves(expr, lambda leaf: new.get(leaf, leaf) if isinstance(leaf, Var) else leaf)


@dataclass
class Bindings:
    """Lists the bindings of a dataflow function. `users[var]` lists the indices of the bindings that read the variable,
    once for each time that they read it; OUTPUT stands for the function's result."""

    variables: list[Var]
    values: list[Any]
    outputs: tuple[Any, ...]
    index: dict[Var, int] = field(default_factory=dict)
    users: dict[Var, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, function: relax.Function) -> Bindings:
        pairs = [(b.var, b.value) for block in function.body.blocks for b in block.bindings]
        body = function.body.body
        if pairs and isinstance(body, Var) and body.same_as(pairs[-1][0]) and isinstance(pairs[-1][1], relax.Tuple):
            body = pairs.pop()[1]
        outputs = tuple(body.fields) if isinstance(body, relax.Tuple) else (body,)
        found = cls([v for v, _ in pairs], [e for _, e in pairs], outputs)
        for i, (var, value) in enumerate(pairs):
            found.index[var] = i
            for leaf in operands(value):
                found._use(leaf, i)
        for output in outputs:
            found._use(output, OUTPUT)
        return found

    def _use(self, expr: Any, index: int) -> None:
        if isinstance(expr, Var):
            self.users.setdefault(expr, []).append(index)

    def value_of(self, expr: Any) -> Any:
        """Return the value that a variable is bound to, or None for a parameter or a constant."""
        i = self.index.get(expr) if isinstance(expr, Var) else None
        return None if i is None else self.values[i]

    def sole_user(self, var: Var) -> int | None:
        """Return the index of the only binding that reads the variable, if it reads it once. Return None if there are
        more readers or none, or if the variable is a result."""
        users = self.users.get(var, [])
        return users[0] if len(users) == 1 and users[0] != OUTPUT else None
