"""Says in which precision an operator is computed. Start at `precision_of` and `Precision`."""

from __future__ import annotations

from dataclasses import dataclass

from templates.integers import INTEGERS

INT8 = "int8"


def precision_of(dtype: str) -> str:
    """Return what users call the precision of workloads of a dtype: "int8" for integers of 8 bits, else the dtype."""
    return INT8 if dtype == INTEGERS else dtype


@dataclass(frozen=True)
class Precision:
    """Says in which precision an anchor of a quantised network is computed, and why.

    `integers` and `floats` are the seconds of its kernel in integers and in float32, and `conversions` those of the
    conversions around it that computing it in float32 adds (less than 0 if it saves some). They are None where there
    was nothing to compare. `source` is "measured" if both kernels were, "estimated", "file" for what can only be
    computed as the file says, or "given" for a choice that was made before.
    """

    node: str
    in_float: bool
    why: str
    source: str
    integers: float | None = None
    floats: float | None = None
    conversions: float | None = None


def rate_unit(precision: str) -> str:
    """Return the unit of a kernel's speed, which is given in billions of operations a second."""
    return "Gop/s" if precision == INT8 else "GF/s"
