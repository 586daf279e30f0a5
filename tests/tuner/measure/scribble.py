"""A dense kernel that is right the first time and then spoils its own input, which the next candidate reads too.

In TVM's script, which evaluates annotations when it parses: no `from __future__ import annotations` here.
"""

from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def dense_then_erase(
    data: T.Buffer((3, 40), "float32"),
    weight: T.Buffer((24, 40), "float32"),
    bias: T.Buffer((24,), "float32"),
    out: T.Buffer((3, 24), "float32"),
):
    for i, j in T.grid(3, 24):
        out[i, j] = bias[j]
    for i, j, k in T.grid(3, 24, 40):
        out[i, j] = out[i, j] + data[i, k] * weight[j, k]
    for i, j in T.grid(3, 24):
        out[i, j] = T.Select(out[i, j] < T.float32(0), T.float32(0), out[i, j])
    for i, j in T.grid(3, 40):
        data[i, j] = T.float32(0)
