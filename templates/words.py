"""Multiply integers four at a time: 32-bit numbers that hold four bytes each. Start at `dot`.

GPUs read, keep and multiply four neighbouring channels of a pixel as one number, a word, whose lowest byte is the first
channel. Weights are packed likewise. Kernels are scheduled as if data and weights were words; `in_dots` brings a
scheduled function into the form that is compiled. `templates.gpu.dots` says what a device computes `dot` by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Op

from templates.integers import INTEGERS, MIDDLE, SUMS

BYTES = 4  # of a word
_DOT = "edgetune.dot"
_EVERY_BYTE = 0x01010101


def _defined() -> Op:
    """Tell TVM of the operator: it has no effects, and vectors of it are computed lane by lane."""
    if _DOT not in Op.list_op_names():
        tvm_ffi.get_global_func("ir.RegisterOp")(_DOT, "sum + the four products of the bytes of two words")
    op = Op.get(_DOT)
    pure = Op.get("tirx.call_pure_extern").get_attr("TCallEffectKind")
    values = {"TCallEffectKind": pure, "TVectorizable": True, "TScriptPrinterName": "edgetune_dot"}
    for name, value in values.items():
        op.set_attr(name, value)
    return op


_OP = _defined()


def dot(total: Any, data: Any, weight: Any) -> Any:
    """Return `total` plus the products of the four bytes of two words, exactly, in int32. The bytes of `data` are
    unsigned, or signed on devices that multiply such alone; those of `weight` are signed."""
    return tirx.call_intrin(SUMS, _OP, total, data, weight)


def computes_dots_by(kind: str, rule: Callable[[Any], Any]) -> None:
    """Let rule(call) make the expression that a call of `dot` becomes on targets of a kind. Its type may be a
    vector."""
    _OP.set_attr(f"{kind}.FLowerIntrinsic", tvm_ffi.convert(rule))


def product(data: Any, weight: Any) -> Any:
    """Return the sum of the products of the bytes of two words."""
    return dot(tirx.const(0, SUMS), data, weight)


def word_of(read: Callable[[int], Any]) -> Any:
    """Return the word of the bytes read(0) to read(3), which are expressions of uint8."""
    first, *others = (read(i).astype(SUMS) << (8 * i) for i in range(BYTES))
    for other in others:
        first = first | other
    return first


def repeated(value: Any) -> Any:
    """Return the word of four equal bytes, an expression of uint8."""
    return value.astype(SUMS) * tirx.const(_EVERY_BYTE, SUMS)


def moved(word: Any) -> Any:
    """Subtract `MIDDLE` from each byte of a word, so that unsigned ones become signed ones."""
    return word ^ tirx.const(np.array(MIDDLE * _EVERY_BYTE, np.uint32).view(np.int32).item(), SUMS)


def pack_words(weight: np.ndarray) -> np.ndarray:
    """Pack weights (..., channels, lanes) of int8 as words (..., channels / 4, lanes). Channels are filled up with
    zeros."""
    *outer, channels, lanes = weight.shape
    filled = np.pad(weight, [*[(0, 0)] * len(outer), (0, -channels % BYTES), (0, 0)])
    groups = filled.reshape(*outer, -1, BYTES, lanes).swapaxes(-1, -2)
    return np.ascontiguousarray(groups).view("<i4")[..., 0]


def in_dots(func: tirx.PrimFunc, data: bool) -> tirx.PrimFunc:
    """Return a scheduled function whose sums are operands of `dot`, as devices have it in one instruction. If `data`,
    the first parameter becomes a tensor of bytes, which the function reads as words."""

    def visit(store: Any) -> Any:
        value = store.value
        if not isinstance(value, tirx.Add) or not isinstance(value.b, tvm.ir.Call) or not value.b.op.same_as(_OP):
            return store
        return tirx.BufferStore(store.buffer, dot(value.a, *value.b.args[1:]), store.indices)

    func = func.with_body(tvm_ffi.structural_map(func.body, [(tirx.BufferStore, visit)]))
    return _of_bytes(func) if data else func


def _of_bytes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    words, *others = func.params
    *outer, last = (int(size) for size in words.ty.shape)
    given = tirx.decl_buffer([*outer, BYTES * last], INTEGERS, name=words.name)
    body = tirx.SeqStmt([tirx.DeclBuffer(words, data=tirx.buffer_data(given)), func.body])
    return tirx.PrimFunc([given, *others], body, func.ret_type, attrs=func.attrs)
