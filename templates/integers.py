"""This module says what the workloads of integers are, whose dtype is "uint8". Start at `Types`.

Their data is uint8 and their weight int8. Products are summed in int32, without rounding, and the epilogue begins with
these sums. Numbers with a zero point are multiplied as they are: the epilogue's token "offset" makes good for it, as
the products of a constant weight with a zero point are the same for all pixels. "border" has the data's zero point,
which is what the padding counts as.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuning_db.record import Workload

INTEGERS = "uint8"
WEIGHT = "int8"
SUMS = "int32"
QUAD = 4  # input channels of a weight that lie together: their products are summed by one instruction


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
        if dtype != INTEGERS:
            return cls(dtype, dtype, dtype, dtype)
        out = "float32" if "real" in epilogue else SUMS
        return cls(INTEGERS, WEIGHT, "float32", INTEGERS if "quantize" in epilogue else out)
