"""This module fetches the weights of direct convolutions into a core's caches before they are read.

Start at `prefetch_weights`. In a network a layer's weights come from memory, and a core's own prefetcher starts anew at
each block of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import tirx

from templates.direct import DirectProblem
from templates.rewrite import CACHE_LINE_BYTES, prefetch, shared_out, wrap_marked_loop
from templates.space import Values

# Prefetching weights pays only if a layer has more bytes of them than stay in a core's first caches anyway.
_LEAST_BYTES = 128 * 1024
_INDICES = 8  # of the stage that sums, before the input lanes: n, o, y, x, v, ic, kh, kw


def fetches_weights(problem: DirectProblem) -> bool:
    """Tell whether it may pay to prefetch weights: there are many, and a step of the loop that does reads whole cache
    lines."""
    row = problem.conv.kernel[1] * prod(problem.packed_shape(1)[4:]) * np.dtype(problem.weight_type).itemsize
    return problem.weight_bytes > _LEAST_BYTES and row >= CACHE_LINE_BYTES and not problem.plain_data


def prefetch_weights(func: tirx.PrimFunc, problem: DirectProblem, k: Values, block: str) -> tirx.PrimFunc:
    """Prefetch the next weight block, an equal part of it in each of the tiles that the current one is reused over.
    `block` is the stage that reads the weights."""
    conv = problem.conv
    tiles_x = -(-problem.columns // k["tw"])
    if problem.flat:
        tiles_x //= k["groups"]
        sweeps = tiles_x
    else:
        sweeps = tiles_x * (problem.rows // k["th"] // k["groups"])
    row = problem.packed_shape(1)[3:]  # of the kernel: its columns, and the lanes of each
    wide = CACHE_LINE_BYTES // np.dtype(problem.weight_type).itemsize
    lines = -(-prod(row) // wide)
    before = _INDICES + len(problem.depths)  # an index of a part's chunk comes before these
    weight = func.params[1]

    def fetching(loop: Any, index: Any) -> Any:
        o, y, x, _, ic = index[-before:][1:6]
        if len(index) > before:  # the block of a part
            ic = index[0] * (k["sums"] // conv.kernel[0]) + ic
        tile_row = y // k["th"] % (sweeps // tiles_x) if not problem.flat else 0
        sweep = tile_row * tiles_x + x // k["tw"] % tiles_x
        fetches = []
        for i in range(k["ob"]):
            for line in shared_out(lines, sweeps, sweep):
                at = [o + k["ob"] + i, ic, loop.loop_var, *_places(line * wide, row)]
                fetches.append(prefetch(weight, at))
        return tirx.SeqStmt([*fetches, loop.body])

    return wrap_marked_loop(func, block, fetching)


def _places(number: Any, sizes: Sequence[int]) -> list[Any]:
    """Return the indices of value `number` in a tensor of these sizes, or beyond its end."""
    return [number // prod(sizes[i + 1 :]) % size if i else number // prod(sizes[1:]) for i, size in enumerate(sizes)]
