"""Read how much memory TVM plans for the values of a network, as it compiles it. Start at `PlannedMemory`."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import IRModule

from tuner.graph.ir.bindings import dtype_of, shape_of
from tuner.graph.ir.simplify import is_call

_PASS = "StaticPlanBlockMemory"


@tvm.instrument.pass_instrument
class PlannedMemory:
    """An instrument of a pass context that reads the plan as soon as TVM has made it.

    `bytes` is what the values that an inference computes take, its results included. Values that are not needed at the
    same time share memory. It is None if nothing is planned, as for several devices.
    """

    def __init__(self) -> None:
        self.bytes: int | None = None

    def run_after_pass(self, module: IRModule, info: Any) -> None:
        """Add up what the network allocates after the pass that plans."""
        if str(info.name) == _PASS:
            bindings = [binding for block in module["main"].body.blocks for binding in block.bindings]
            self.bytes = sum(_allocated(binding.var, binding.value) for binding in bindings)


def _allocated(var: Any, value: Any) -> int:
    """Return the bytes that a binding allocates. A tensor in a storage that is allocated already takes none."""
    if is_call(value, "memory.alloc_storage"):
        assert isinstance(value.args[0], relax.ShapeExpr)
        return int(value.args[0].values[0])
    if is_call(value, "builtin.alloc_tensor"):
        shape, dtype = shape_of(var), dtype_of(var)
        assert shape is not None
        assert dtype is not None
        return prod(shape) * np.dtype(dtype).itemsize
    return 0
