"""What a kernel computes, as a hash. Start at `kernel_hash`."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

# On a kernel that writes a part of a tensor: the hash of the one that writes a tensor of its own.
WHOLE = "edgetune.whole"
_ATTRIBUTES = (
    "target",
    "global_symbol",
    "op_pattern",
    "tirx.is_scheduled",
    WHOLE,
)  # that say nothing of what is computed


def kernel_hash(function: tirx.PrimFunc) -> str:
    """16 hexadecimal digits, the same for functions that differ in their names and targets alone."""
    for attribute in _ATTRIBUTES:
        function = function.without_attr(attribute)
    return f"{tvm_ffi.structural_hash(function) & (1 << 64) - 1:016x}"
