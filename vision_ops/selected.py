"""Rows of indices of which only the first are there, and how many those are."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from vision_ops.kernels import Cells, Emitter, held, when

INVALID = -1  # an index behind the last
_EACH = 64  # places that an item makes invalid


def invalidate(emitter: Emitter, indices: Cells, count: Cells | None, *, rows: int, length: int, items: int) -> None:
    """A launch that makes all indices (rows, length) invalid and the counts (rows,), if given, zero."""
    with emitter.launch(-(-rows * length // (items * _EACH)), items) as (group, i), T.serial(0, _EACH) as step:
        at = held((group * _EACH + step) * items + i)
        with when(at < rows * length):
            indices[at // length, at % length] = tirx.const(INVALID, "int32")
        if count is not None:
            with when(at < rows):
                count[at] = tirx.const(0, "int32")
