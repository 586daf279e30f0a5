"""Hash what a kernel computes. Start at `kernel_hash`."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

# This attribute of a kernel that writes a part of a tensor is the hash of the kernel that writes a whole tensor.
WHOLE = "edgetune.whole"
_ATTRIBUTES = (
    "target",
    "global_symbol",
    "op_pattern",
    "tirx.is_scheduled",
    WHOLE,
)  # attributes that do not change what is computed


def kernel_hash(function: tirx.PrimFunc) -> str:
    """Return 16 hexadecimal digits, which are the same for functions that differ only in their names and targets."""
    for attribute in _ATTRIBUTES:
        function = function.without_attr(attribute)
    return f"{tvm_ffi.structural_hash(function) & (1 << 64) - 1:016x}"
