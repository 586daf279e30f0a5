"""Keep divisions of shifted indices from being simplified, which TVM does wrongly. Start at `with_opaque_divisions`.

When TVM lowers a buffer's index, it simplifies quasi-affine expressions of the loops around it. It takes
x // 15 * 5 + (x % 15 + 2) // 3 for (x + 2) // 3 - 5, which is -5 instead of 0 for x = 0 (apache-tvm 0.27,
tvm.sym.iter_map_simplify). Such indices arise where loops are fused over a slice that is reshaped.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock
from tvm.sym import Analyzer

_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)


def with_opaque_divisions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function in which every dividend that a constant shifts stands behind an operation that changes nothing
    (a bitwise or with zero). TVM knows nothing about such an operation, and processors do not execute it."""
    shifted: list[Any] = []
    tvm_ffi.structural_walk(func.body, [(kind, shifted.append) for kind in _DIVISIONS])
    if not any(_is_shifted(division.a) for division in shifted):
        return func
    analyzer = Analyzer()

    def bind(block: Any) -> None:
        for axis in block.iter_vars:
            analyzer.bind(axis.var, axis.dom)

    def opaque(division: Any) -> Any:
        if not _is_shifted(division.a):
            return division
        return type(division)(tirx.bitwise_or(division.a, tirx.const(0, division.a.ty.dtype)), division.b)

    tvm_ffi.structural_walk(func.body, [(SBlock, bind)])
    body = func.body
    for change in (analyzer.simplify, opaque):  # the axes of a block are simplified rightly
        body = tvm_ffi.structural_map(body, [(kind, change) for kind in _DIVISIONS])
    return func.with_body(body)


def _is_shifted(dividend: Any) -> bool:
    """Tell whether a constant is added somewhere in a dividend."""
    found: list[Any] = []

    def note(node: Any) -> None:
        if isinstance(node.a, tirx.IntImm) or isinstance(node.b, tirx.IntImm):
            found.append(node)

    tvm_ffi.structural_walk(dividend, [(tirx.Add, note), (tirx.Sub, note)])
    return bool(found)
