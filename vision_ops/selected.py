"""Outputs that select elements are rows of indices with a count for each row. `invalidate` fills them beforehand.

Only the first `count` indices of a row are valid; those behind them are `INVALID`.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from templates.kernels import Cells, Emitter, held, when

INVALID = -1  # an index behind the last valid one
_EACH = 64  # indices that an item sets


def invalidate(emitter: Emitter, indices: Cells, count: Cells | None, *, rows: int, length: int, items: int) -> None:
    """Emit a launch that sets all indices (rows, length) to INVALID, and the counts (rows,), if given, to zero."""
    with emitter.launch(-(-rows * length // (items * _EACH)), items) as (group, i), T.serial(0, _EACH) as step:
        at = held((group * _EACH + step) * items + i)
        with when(at < rows * length):
            indices[at // length, at % length] = tirx.const(INVALID, "int32")
        if count is not None:
            with when(at < rows):
                count[at] = tirx.const(0, "int32")
