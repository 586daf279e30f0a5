"""Convert the operators that `rewrites.quantized` writes for whole numbers. Start at `INTEGERS`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from tuner.graph.importers.onnx.rewrites.quantized import WHOLE


def _whole(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Convert a whole number in floating point that int32 has room for, without the checks that a Cast needs."""
    del builder, attrs
    return relax.op.astype(inputs[0], "int32")


INTEGERS = {WHOLE: _whole}
