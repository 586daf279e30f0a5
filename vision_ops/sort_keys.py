"""Keys of 64 bits that sort as values do. A key has the value in its upper half and the value's index in the lower.

All keys are different, so that any sort by them is stable. A sort needs only comparisons of integers. Start at `ranked`
and `packed`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from templates.kernels import held

LAST = (1 << 64) - 1  # sorts behind every key
_SIGN = 1 << 31


def _u32(value: int) -> Any:
    return tirx.const(value, "uint32")


def ranked(value: Any, descending: bool) -> Any:
    """Return an unsigned integer of 32 bits that sorts as the value (float32 or int32) does.

    NaN comes last in either direction, and both zeros are equal.
    """
    if value.ty.dtype.startswith("int"):
        bits = tirx.reinterpret("uint32", value) ^ _u32(_SIGN)
        return ~bits if descending else bits
    value = held(value)
    value = held(tirx.if_then_else(value == _zero(), _zero(), value))
    bits = held(tirx.reinterpret("uint32", value))
    # The bits of negative numbers sort backwards. (TVM cannot compare with constants beyond the greatest int32.)
    negative = tirx.reinterpret("int32", value) < tirx.const(0, "int32")
    up = tirx.if_then_else(negative, ~bits, bits | _u32(_SIGN))
    return tirx.if_then_else(tirx.isnan(value), _u32(0xFFFFFFFF), ~up if descending else up)


def _zero() -> Any:
    return tirx.const(0.0, "float32")


def packed(upper: Any, lower: Any) -> Any:
    """Pack two halves into one key."""
    return (upper.astype("uint64") << tirx.const(32, "uint64")) | lower.astype("uint64")


def place_of(key: Any) -> Any:
    """Return the lower half of a key, which is an index."""
    return (key & tirx.const(0xFFFFFFFF, "uint64")).astype("int32")


def argsorted(values: np.ndarray, descending: bool) -> np.ndarray:
    """Compute the reference: the indices that sort the last axis, stably, with NaN last in either direction."""
    if descending:  # -x would wrap around at the least integer
        values = -values if np.issubdtype(values.dtype, np.floating) else ~values
    return np.argsort(values, axis=-1, kind="stable").astype(np.int32)
