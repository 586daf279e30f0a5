"""Tensor intrinsics for fragments of matrices in a warp's registers (nvcuda::wmma). Start at `fragment_intrinsics`.

The layout of a fragment in registers does not matter here: the warp loads, multiplies and stores it as a whole. TVM has
the same intrinsics except those for tf32 (tvm.s_tir.tensor_intrin.cuda), but importing that module registers hundreds
of them for all kinds of processors and takes a minute.

Source: CUDA C++ Programming Guide, "Warp Matrix Functions".
"""

# mypy: disallow_untyped_decorators=False
# (TVMScript's decorator reads the source text of the functions below; they never run.)

from __future__ import annotations

import functools
from typing import Any

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

HALF = "float16"
# The scope of local memory whose size is given at the launch. In static memory TVM would reuse a larger buffer of
# another type for what is stored, and then refuse its own code.
STORED = "shared.dyn"
SCOPES = {"a": "wmma.matrix_a", "b": "wmma.matrix_b", "sums": "wmma.accumulator"}


@functools.cache
def fragment_intrinsics(m: int, n: int, k: int, dtype: str) -> dict[str, str]:
    """Return the names of the intrinsics for sums[m, n] += a[m, k] * b[k, n]. The first call registers them.

    "a" and "b" load half precision from local memory of `dtype`, row by row, with any distance between rows. "clear"
    sets float32 sums to zero, "multiply" adds a product, and "store" writes sums to local memory of scope `STORED`.
    """
    shape = (m, n, k)
    made = {
        "a": _load(shape, (m, k), dtype, SCOPES["a"]),
        "b": _load(shape, (k, n), dtype, SCOPES["b"]),
        "clear": _clear(shape),
        "multiply": _multiply(shape),
        "store": _store(shape),
    }
    names = {name: f"edgetune.wmma_{m}x{n}x{k}_{dtype}_{name}" for name in made}
    for name, (description, implementation) in made.items():
        TensorIntrin.register(names[name], description, implementation)
    return names


def _index(tensor: Any, stride: Any, rows: int, columns: int) -> Any:
    """Return the index of a fragment among those of its buffer."""
    per_row = stride // columns
    return tensor.elem_offset // stride // rows * per_row + tensor.elem_offset % stride // columns


def _load(shape: tuple[int, int, int], extents: tuple[int, int], dtype: str, scope: str) -> tuple[Any, Any]:
    m, n, k = shape
    rows, columns = extents

    def converted(value: Any) -> Any:
        return value if dtype == HALF else value.astype(HALF)

    @T.prim_func(s_tir=True)
    def description(source: T.handle, fragment: T.handle) -> None:
        S = T.match_buffer(source, (rows, columns), dtype, align=64, offset_factor=columns, scope="shared")
        F = T.match_buffer(fragment, (rows, columns), HALF, align=64, offset_factor=columns, scope=scope)
        with T.sblock("root"):
            T.reads(S[0:rows, 0:columns])
            T.writes(F[0:rows, 0:columns])
            for i, j in T.grid(rows, columns):
                with T.sblock("load"):
                    y, x = T.axis.remap("SS", [i, j])
                    F[y, x] = converted(S[y, x])

    @T.prim_func(s_tir=True)
    def implementation(source: T.handle, fragment: T.handle) -> None:
        s1, s0, f1, f0 = T.int32(), T.int32(), T.int32(), T.int32()
        S = T.match_buffer(
            source, (rows, columns), dtype, align=64, offset_factor=columns, scope="shared", strides=[s1, s0]
        )
        F = T.match_buffer(
            fragment, (rows, columns), HALF, align=64, offset_factor=columns, scope=scope, strides=[f1, f0]
        )
        with T.sblock("root"):
            T.reads(S[0:rows, 0:columns])
            T.writes(F[0:rows, 0:columns])
            T.evaluate(
                T.tvm_load_matrix_sync(
                    F.data,
                    m,
                    n,
                    k,
                    _index(F, f1, rows, columns),
                    S.access_ptr("r", ptr_type=dtype),
                    s1,
                    "row_major",
                    dtype="void",
                )
            )

    return description, implementation


def _clear(shape: tuple[int, int, int]) -> tuple[Any, Any]:
    m, n, k = shape
    scope = SCOPES["sums"]

    @T.prim_func(s_tir=True)
    def description(fragment: T.handle) -> None:
        F = T.match_buffer(fragment, (m, n), "float32", align=64, offset_factor=n, scope=scope)
        with T.sblock("root"):
            T.reads()
            T.writes(F[0:m, 0:n])
            for i, j in T.grid(m, n):
                with T.sblock("clear"):
                    y, x = T.axis.remap("SS", [i, j])
                    F[y, x] = T.float32(0)

    @T.prim_func(s_tir=True)
    def implementation(fragment: T.handle) -> None:
        f1, f0 = T.int32(), T.int32()
        F = T.match_buffer(fragment, (m, n), "float32", align=64, offset_factor=n, scope=scope, strides=[f1, f0])
        with T.sblock("root"):
            T.reads()
            T.writes(F[0:m, 0:n])
            T.evaluate(T.tvm_fill_fragment(F.data, m, n, k, _index(F, f1, m, n), T.float32(0), dtype="void"))

    return description, implementation


def _store(shape: tuple[int, int, int]) -> tuple[Any, Any]:
    m, n, k = shape
    scope = SCOPES["sums"]

    @T.prim_func(s_tir=True)
    def description(fragment: T.handle, result: T.handle) -> None:
        F = T.match_buffer(fragment, (m, n), "float32", align=64, offset_factor=n, scope=scope)
        R = T.match_buffer(result, (m, n), "float32", align=64, offset_factor=n, scope=STORED)
        with T.sblock("root"):
            T.reads(F[0:m, 0:n])
            T.writes(R[0:m, 0:n])
            for i, j in T.grid(m, n):
                with T.sblock("store"):
                    y, x = T.axis.remap("SS", [i, j])
                    R[y, x] = F[y, x]

    @T.prim_func(s_tir=True)
    def implementation(fragment: T.handle, result: T.handle) -> None:
        f1, f0, r1, r0 = T.int32(), T.int32(), T.int32(), T.int32()
        F = T.match_buffer(fragment, (m, n), "float32", align=64, offset_factor=n, scope=scope, strides=[f1, f0])
        R = T.match_buffer(result, (m, n), "float32", align=64, offset_factor=n, scope=STORED, strides=[r1, r0])
        with T.sblock("root"):
            T.reads(F[0:m, 0:n])
            T.writes(R[0:m, 0:n])
            T.evaluate(
                T.tvm_store_matrix_sync(
                    F.data,
                    m,
                    n,
                    k,
                    _index(F, f1, m, n),
                    R.access_ptr("w", ptr_type="float32"),
                    r1,
                    "row_major",
                    dtype="void",
                )
            )

    return description, implementation


def _multiply(shape: tuple[int, int, int]) -> tuple[Any, Any]:
    m, n, k = shape

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle, sums: T.handle) -> None:
        A = T.match_buffer(a, (m, k), HALF, align=64, offset_factor=k, scope="wmma.matrix_a")
        B = T.match_buffer(b, (k, n), HALF, align=64, offset_factor=n, scope="wmma.matrix_b")
        C = T.match_buffer(sums, (m, n), "float32", align=64, offset_factor=n, scope="wmma.accumulator")
        with T.sblock("root"):
            T.reads(C[0:m, 0:n], A[0:m, 0:k], B[0:k, 0:n])
            T.writes(C[0:m, 0:n])
            for i, j, s in T.grid(m, n, k):
                with T.sblock(""):
                    y, x, z = T.axis.remap("SSR", [i, j, s])
                    C[y, x] = C[y, x] + A[y, z].astype("float32") * B[z, x].astype("float32")

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, sums: T.handle) -> None:
        a1, a0, b1, b0, c1, c0 = T.int32(), T.int32(), T.int32(), T.int32(), T.int32(), T.int32()
        A = T.match_buffer(a, (m, k), HALF, align=64, offset_factor=k, scope="wmma.matrix_a", strides=[a1, a0])
        B = T.match_buffer(b, (k, n), HALF, align=64, offset_factor=n, scope="wmma.matrix_b", strides=[b1, b0])
        C = T.match_buffer(
            sums, (m, n), "float32", align=64, offset_factor=n, scope="wmma.accumulator", strides=[c1, c0]
        )
        with T.sblock("root"):
            T.reads(C[0:m, 0:n], A[0:m, 0:k], B[0:k, 0:n])
            T.writes(C[0:m, 0:n])
            T.evaluate(
                T.tvm_mma_sync(
                    C.data,
                    _index(C, c1, m, n),
                    A.data,
                    _index(A, a1, m, k),
                    B.data,
                    _index(B, b1, k, n),
                    C.data,
                    _index(C, c1, m, n),
                    dtype="void",
                )
            )

    return description, implementation
