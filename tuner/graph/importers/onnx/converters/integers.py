"""Convert the operators that `rewrites.quantized` writes for whole numbers. Start at `INTEGERS`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import helper
from tvm import relax

from tuner.graph.importers.onnx.rewrites.quantized import WHOLE


def _whole(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Convert whole numbers in floating point to an integer type, without the checks that a Cast needs: they are in its
    range, or are clipped to it. What is no number becomes the lowest one (`lowering.quantising`)."""
    numbers, low, high = inputs[0], attrs["low"], attrs["high"]
    if low < high:
        numbers = builder.emit(relax.op.clip(numbers, relax.prim_value(float(low)), relax.prim_value(float(high))))
    return relax.op.astype(numbers, helper.tensor_dtype_to_np_dtype(attrs["to"]).name)


INTEGERS = {WHOLE: _whole}
