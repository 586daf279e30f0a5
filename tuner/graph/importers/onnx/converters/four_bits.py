"""Convert the products that `rewrites.four_bits` writes to the operator `dense_4bit`. Start at `FEW_BITS`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tvm import relax

from templates.four_bits import FourBits
from tuner.graph.importers.onnx.rewrites.four_bits import FOUR_BITS
from tuner.graph.ir.bindings import reshaped, shape_of
from tuner.graph.ir.operators import emit_operator


def _four_bits(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    data, *matrix = inputs
    shape = shape_of(data)
    if shape is None:
        raise ValueError("the sizes of its inputs are not known")
    rows, columns = prod(shape[:-1]), int(attrs["columns"])
    view = FourBits(rows, shape[-1], columns, int(attrs["block"]), zeros=len(matrix) > 2)
    (found,) = emit_operator(builder, view.workload(), [reshaped(builder, data, (rows, shape[-1])), *matrix])
    return reshaped(builder, found, (*shape[:-1], columns))


FEW_BITS = {FOUR_BITS: _four_bits}
