"""Emit calls of PrimFuncs into a Relax function, and keep every value in the layouts that are needed.

`Emitter` adds each function and each constant once. `Forms` holds, for every variable of the fused graph, its plain
form and its blocked forms. If a form that is asked for does not exist yet, the conversion is emitted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import GenericConst, GlobalVar, Var
from tvm.target import Target

from templates.stages import zero
from templates.template import PLAIN, Layout
from tuner.graph.ir.bindings import dtype_of, shape_of, with_leaves
from tuner.graph.ir.simplify import as_constant, constant

OPAQUE = 8  # TVM's pattern number for functions that are never fused with others
INJECTIVE = 2
OUT_FUSABLE = 4  # element-wise functions may be fused behind it
FLOATS = ("float32", "float16")  # how activations are stored
INDEX_DTYPE = "int64"  # of indices in functions that are fused with those that TVM makes


class Emitter:
    """Builds a Relax function. Functions are added once for each key, and constants once for each content."""

    def __init__(self, builder: relax.BlockBuilder, target: Target) -> None:
        self.builder = builder
        self.target = target
        self._functions: dict[Hashable, GlobalVar] = {}
        self._constants: dict[bytes, relax.Expr] = {}

    def function(self, key: Hashable, make: Callable[[], tirx.PrimFunc], name: str, pattern: int) -> GlobalVar:
        """Return the function of the module that has this key. It is made if the key is new. With the pattern OPAQUE
        it counts as scheduled."""
        if key not in self._functions:
            func = make().without_attr("global_symbol").with_attr("op_pattern", pattern)
            if pattern == OPAQUE:
                func = func.with_attr("tirx.is_scheduled", True)
            self._functions[key] = self.builder.add_func(func, name)
        return self._functions[key]

    def call(self, function: GlobalVar, arguments: Sequence[Any], shape: Sequence[int], dtype: str = "float32") -> Var:
        """Emit a call that returns one tensor."""
        out = relax.TensorType(tuple(shape), dtype)
        return self.builder.emit(relax.call_tir(function, list(arguments), out_ty=out))

    def typed(self, expr: Any, dtype: str | None) -> Any:
        """Convert a tensor of floating-point numbers to another type that is in FLOATS. Anything else is returned
        unchanged."""
        if not isinstance(expr, Var | GenericConst) or {dtype_of(expr), dtype} != set(FLOATS):
            return expr
        return self.builder.emit(relax.op.astype(expr, dtype))

    def constant(self, array: np.ndarray) -> relax.Expr:
        key = hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).digest()
        if key not in self._constants:
            self._constants[key] = as_constant(array)
        return self._constants[key]


class Forms:
    """Knows the expressions that hold each value, by layout block (0: plain). `asked` has the layout in which each
    value was first asked for."""

    def __init__(self, emitter: Emitter) -> None:
        self.asked: dict[Var, Layout] = {}
        self._emitter = emitter
        self._held: dict[Var, dict[int, Any]] = {}

    def put(self, var: Var, expr: Any, layout: Layout = PLAIN) -> None:
        self._held.setdefault(var, {})[layout.block] = expr

    def block_of(self, expr: Any) -> int:
        """Return the block of a blocked form that exists, or 0 if there is none."""
        held = self._held.get(expr, {}) if isinstance(expr, Var) else {}
        return next((block for block in held if block), 0)

    def native(self, var: Var) -> tuple[Any, Layout]:
        """Return a value in the form that it was made in, and its layout."""
        block, expr = next(iter(self._held[var].items()))
        return expr, Layout(block)

    def plain(self, expr: Any) -> Any:
        """Return an expression of the fused graph with every variable replaced by its plain form."""

        def leaf(expr: Any) -> Any:
            return self.get(expr, PLAIN) if isinstance(expr, Var) and expr in self._held else expr

        return with_leaves(expr, leaf)

    def get(self, expr: Any, layout: Layout) -> Any:
        """Return a tensor in a layout. It is converted, once, if it is not yet held in that layout."""
        value = constant(expr)
        if value is not None:
            return self._emitter.constant(layout.pack(value))
        held = self._held[expr]
        self.asked.setdefault(expr, layout)
        if layout.block not in held:
            source = Layout(next(iter(held)))
            held[layout.block] = convert(self._emitter, held[source.block], shape_of(expr), source=source, to=layout)
        return held[layout.block]


def convert(emitter: Emitter, expr: Any, shape: tuple[int, ...] | None, *, source: Layout, to: Layout) -> Any:
    """Emit the conversion of a tensor of plain shape `shape` (N, C, H, W). It is only a reshape if the values stay
    where they are in memory."""
    assert shape is not None
    _, c, h, w = shape
    if h * w == 1 and all(c % layout.block == 0 for layout in (source, to) if layout.block):
        return emitter.builder.emit(relax.op.reshape(expr, to.shape(shape)))
    dtype = str(expr.ty.dtype)
    key = ("convert", shape, source, to, dtype)
    name = f"to_{'plain' if not to.block else f'blocked{to.block}'}"
    function = emitter.function(key, lambda: _conversion(shape, source, to, dtype), name, INJECTIVE)
    return emitter.call(function, [expr], to.shape(shape), dtype)


def _conversion(shape: tuple[int, ...], source: Layout, to: Layout, dtype: str) -> tirx.PrimFunc:
    channels = shape[1]
    data = te.placeholder(source.shape(shape), name="data", dtype=dtype)

    def read(n: Any, c: Any, y: Any, x: Any) -> Any:
        if source.block:
            return data[n, c // source.block, y, x, c % source.block]
        return data[n, c, y, x]

    def blocked(n: Any, o: Any, y: Any, x: Any, v: Any) -> Any:
        channel = o * to.block + v
        if channels % to.block == 0:
            return read(n, channel, y, x)
        return tirx.if_then_else(channel < channels, read(n, channel, y, x), zero(dtype))

    out = te.compute(to.shape(shape), blocked if to.block else read, name="converted")
    return te.create_prim_func([data, out], index_dtype_override=INDEX_DTYPE)
