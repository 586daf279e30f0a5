"""This module says what the workloads of integers are, whose dtype is "uint8", and how kernels hold them. Start at
`Types`.

Their data is uint8 and their weight int8. Products are summed in int32, without rounding, and the epilogue begins with
these sums. Numbers with a zero point are multiplied as they are: the epilogue's token "offset" makes good for it, as
the products of a constant weight with a zero point are the same for all pixels. "border" has the data's zero point,
which is what the padding counts as.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from templates.bfloats import BFLOAT16
from tuning_db.record import Workload

INTEGERS = "uint8"
WEIGHT = "int8"
SUMS = "int32"
MIDDLE = 128  # what uint8 values are lessened by where they become int8
MOST_TAPS = 2**24 // (255 * 128)  # the sums of so many products of integers are exact in float32
_FEWEST_CHANNELS = 16  # of all groups together: the widest vector's lanes


def multiplies_in_groups(groups: int, channels: int, each: int, *, taps: int) -> bool:
    """Tell whether there are kernels of integers for a convolution in several groups, with so many output channels in
    all, input channels in each group, and positions of its kernel."""
    if each == 1 and groups == channels:  # depthwise convolutions are summed in float32
        return taps <= MOST_TAPS
    return groups * each >= _FEWEST_CHANNELS


@dataclass(frozen=True)
class Held:
    """Says in which form a kernel holds the integers that it multiplies. `data` is the type that the data are of, or
    that they are converted to in a stage "pad", and `weight` that of the packed weight. A step of the reduction sums
    the products of `group` neighbouring input channels, whose weights lie together; as `words` each group is one number
    of int32 (`templates.words`). beside(blocks, pixels) is the number of vector registers that a register tile takes
    beside its sums, as compilers use them."""

    data: str = INTEGERS
    weight: str = WEIGHT
    group: int = 4
    words: bool = False
    negated: bool = False  # the data are converted to their negatives, and products subtracted
    # The inputs of all pixels are held until all output blocks have been multiplied with them, and a weight.
    beside: Callable[[int, int], int] = lambda _, pixels: pixels + 1
    broadcasts: bool = False  # whether repeating a pixel's values in a register takes as long as a multiplication

    @property
    def converted(self) -> bool:
        """Tell whether the data are converted."""
        return self.data != INTEGERS

    @property
    def moved(self) -> bool:
        """Tell whether the data are lessened by `MIDDLE`, so that the sums lack as many times the sum of the weights.
        It stands at the end of the packed weight: see `lacking`."""
        return self.data == "int8"

    def convert(self, value: Any) -> Any:
        """Convert a value of the data, which is an expression of TVM's."""
        if self.moved:
            value = value ^ tirx.const(MIDDLE, INTEGERS)
        value = value.astype(self.data)
        return tirx.const(0, self.data) - value if self.negated else value

    def conversion(self, width: int) -> str | None:
        """Return the intrinsic that converts so many neighbouring values of a stage "edges", which has them in
        registers, or None if `convert` is vectorised without one."""
        del width
        return None

    def packed(self, weight: np.ndarray) -> np.ndarray:
        """Return a weight, in the order that a kernel reads it in, as it is held."""
        return np.ascontiguousarray(weight, self.weight)

    @property
    def sums(self) -> str:
        """Return the type that products are summed in."""
        return SUMS

    def product(self, value: Any, tap: Any) -> Any:
        """Multiply a value that is held by one of the packed weight, as tensor intrinsics write it."""
        value = value.astype(SUMS)
        return (tirx.const(0, SUMS) - value if self.negated else value) * tap.astype(SUMS)


AS_GIVEN = Held()


def lacking(weight: np.ndarray, group: int, outer: int = 1) -> np.ndarray:
    """Return what sums of moved data lack, `MIDDLE` times the sum of the weights, as weights to be packed behind these.

    `weight` has `outer` axes that are not summed over, and then those of the reduction, lanes, and neighbours in a
    group. The result is (outer axes, 4 / group, lanes, group): the lowest bytes of all lanes' int32 values, then the
    second ones, and so on. `lack` reads them.
    """
    axes = (*range(outer, weight.ndim - 2), -1)
    sums = MIDDLE * weight.astype(np.int32).sum(axes, dtype=np.int32)
    parts = sums.astype("<i4")[..., None].view(np.int8).swapaxes(-1, -2)
    return parts.reshape(*weight.shape[:outer], -1, weight.shape[-2], group)


def lack(read: Callable[[Any, Any, Any], Any], lane: Any, *, lanes: int, group: int) -> Any:
    """Return a lane's int32 value, as an expression of TVM's, whose bytes `lacking` has packed. read(step, lane,
    neighbour) reads one of them."""
    parts = []
    for i in range(4):
        step, first = divmod(i * lanes, lanes * group)
        part = read(step, (first + lane) // group, (first + lane) % group)
        parts.append(part.astype("uint8").astype(SUMS) << (8 * i))
    return parts[0] | parts[1] | parts[2] | parts[3]


@dataclass(frozen=True)
class Types:
    """Has the types that an anchor's function reads and writes: of its data, of its weight, of those operands of the
    epilogue that have no type of their own, and of its result."""

    data: str
    weight: str
    extra: str
    out: str

    @classmethod
    def of(cls, workload: Workload) -> Types:
        return cls.named(workload.dtype, workload.epilogue)

    @classmethod
    def named(cls, dtype: str, epilogue: Sequence[str]) -> Types:
        """Return the types of anchors whose workloads have this dtype and this epilogue."""
        if dtype == BFLOAT16:
            dtype = "float32"
        if dtype != INTEGERS:
            return cls(dtype, dtype, dtype, dtype)
        out = "float32" if "real" in epilogue else SUMS
        return cls(INTEGERS, WEIGHT, "float32", INTEGERS if tuple(epilogue[-1:]) == ("quantize",) else out)
