"""Keys of 64 bits that sort as values do: the value in the upper half, its place in the lower.

All are different, so that any sort by them is stable, and one comparison of integers is all that a sort asks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from vision_ops.kernels import held

LAST = (1 << 64) - 1  # behind every key
_SIGN = 1 << 31


def _u32(value: int) -> Any:
    return tirx.const(value, "uint32")


def ranked(value: Any, descending: bool) -> Any:
    """An unsigned integer of 32 bits that sorts as the value (float32 or int32) does: NaN comes last in either
    direction, both zeros are equal."""
    if value.ty.dtype.startswith("int"):
        bits = tirx.reinterpret("uint32", value) ^ _u32(_SIGN)
        return ~bits if descending else bits
    value = held(value)
    value = held(tirx.if_then_else(value == _zero(), _zero(), value))
    bits = held(tirx.reinterpret("uint32", value))
    # Negative numbers sort backwards by their bits. (TVM cannot compare with constants beyond the greatest int32.)
    negative = tirx.reinterpret("int32", value) < tirx.const(0, "int32")
    up = tirx.if_then_else(negative, ~bits, bits | _u32(_SIGN))
    return tirx.if_then_else(tirx.isnan(value), _u32(0xFFFFFFFF), ~up if descending else up)


def _zero() -> Any:
    return tirx.const(0.0, "float32")


def packed(upper: Any, lower: Any) -> Any:
    """One key of two halves."""
    return (upper.astype("uint64") << tirx.const(32, "uint64")) | lower.astype("uint64")


def place_of(key: Any) -> Any:
    """The lower half, as an index."""
    return (key & tirx.const(0xFFFFFFFF, "uint64")).astype("int32")


def argsorted(values: np.ndarray, descending: bool) -> np.ndarray:
    """The reference: indices that sort the last axis, stable, NaN last in either direction."""
    if descending:  # -x would wrap around at the least integer
        values = -values if np.issubdtype(values.dtype, np.floating) else ~values
    return np.argsort(values, axis=-1, kind="stable").astype(np.int32)
