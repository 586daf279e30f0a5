"""The memory traffic that an operator needs, whichever kernel computes it. Start at `bytes_of`.

`workloads.flop_of` counts its operations.
"""

from __future__ import annotations

from math import prod

import numpy as np

from templates.epilogue import OPERANDS, operands
from templates.integers import Types
from templates.operator import operator_named
from templates.workloads import STRANGE, anchor_of, is_anchor
from tuning_db.record import Workload


def bytes_of(workload: Workload) -> float | None:
    """Return the bytes that every kernel of a workload has to move, each operand and result counted once.

    Returns None for an operator that is not known, and for attributes that no operator has.
    """
    try:
        moved = float(_bytes_of_anchor(workload) if is_anchor(workload) else _bytes_of_operator(workload))
    except STRANGE:
        return None
    return moved if moved > 0 else None


def _bytes_of_anchor(workload: Workload) -> int:
    anchor, types = anchor_of(workload), Types.of(workload)
    batch, channels, *pixels = anchor.out_shape
    sizes = {"channel": (channels,), "pixel": (batch, *pixels), "image": anchor.out_shape, "single": (1,), "sum": (3,)}
    tensors: list[tuple[tuple[int, ...], str]]
    tensors = [(anchor.data_shape, types.data), (anchor.weight_shape, types.weight), (anchor.out_shape, types.out)]
    kinds = [OPERANDS[token] for token in operands(workload.epilogue)]
    tensors += [(sizes[kind.shape], kind.dtype or types.extra) for kind in kinds]
    return sum(prod(shape) * np.dtype(dtype).itemsize for shape, dtype in tensors)


def _bytes_of_operator(workload: Workload) -> int:
    specs = operator_named(workload.op).operands(workload)
    return sum(prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in specs)
