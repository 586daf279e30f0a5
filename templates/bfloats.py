"""This module says what workloads are whose dtype is "bfloat16". Start at `rounded` and `as_bits`.

Their operands and results are float32, and so are all sums. But each product is one of numbers that are rounded to
bfloat16, the first half of a float32 number: it has 8 binary digits, so that rounding to the nearest changes a number
by up to 2^-9 of its value. A weight is rounded when it is packed, and data are where a kernel reads them.
"""

from __future__ import annotations

import numpy as np

BFLOAT16 = "bfloat16"
BITS = "uint16"  # the type that kernels hold bfloat16 numbers in, as TVM generates no code for numbers of this type


def rounded(array: np.ndarray) -> np.ndarray:
    """Return float32 numbers rounded to bfloat16, as float32. They are rounded to the nearest, halves to the even."""
    bits = as_bits(array).astype(np.uint32) << np.uint32(16)
    return bits.view(np.float32).reshape(array.shape)


def as_bits(array: np.ndarray) -> np.ndarray:
    """Return the 16 bits of each float32 number's nearest bfloat16 number."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    nearest = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    quiet = bits | np.uint32(1 << 22)  # rounding might make an infinity of a NaN
    return (np.where(np.isnan(array), quiet, nearest) >> np.uint32(16)).astype(BITS)
