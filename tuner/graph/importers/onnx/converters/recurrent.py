"""Convert the recurrent layers that `rewrites.recurrent` writes to the operator `recurrent`. Start at `RECURRENT`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from tuner.graph.importers.onnx.rewrites.loops import STEPS
from tuner.graph.ir.bindings import dtype_of, shape_of
from tuner.graph.ir.operators import emit_operator
from vision_ops.recurrent_layer import QUANTISED, Recurrent


def _recurrent(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    shape = shape_of(inputs[0])
    if shape is None:
        raise ValueError("the sizes of its inputs are not known")
    steps, batch, directions, _, hidden = shape
    layer = Recurrent(steps, batch, hidden, directions, attrs["layer"].decode(), reverse=bool(attrs["reverse"]))
    dtype = QUANTISED if dtype_of(inputs[1]) == QUANTISED else "float32"
    found = emit_operator(builder, layer.workload(dtype), inputs)
    return relax.Tuple(found) if len(found) > 1 else found[0]


RECURRENT = {STEPS: _recurrent}
