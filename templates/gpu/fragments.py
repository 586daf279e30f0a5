"""Tensor intrinsics for fragments of matrices in a warp's registers (nvcuda::wmma). Start at `fragment_intrinsics`.

The layout of a fragment in registers does not matter here: the warp loads, multiplies and stores it as a whole. TVM has
the same intrinsics for half precision (tvm.s_tir.tensor_intrin.cuda), but importing that module registers hundreds of
them for all kinds of processors and takes a minute. `templates.gpu.tf32` and `templates.gpu.byte_fragments` define
those that CUDA does not have in this form.

Source: CUDA C++ Programming Guide, "Warp Matrix Functions".
"""

# mypy: disallow_untyped_decorators=False
# (TVMScript's decorator reads the source text of the functions below; they never run.)

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

from templates.integers import INTEGERS, SUMS, WEIGHT
from templates.stages import stored_as
from templates.words import BYTES

HALF = "float16"
# The scope of local memory whose size is given at the launch. In static memory TVM would reuse a larger buffer of
# another type for what is stored, and then refuse its own code.
STORED = "shared.dyn"
SCOPES = {"a": "wmma.matrix_a", "b": "wmma.matrix_b", "sums": "wmma.accumulator"}


@dataclass(frozen=True)
class Fragments:
    """The shape and the types of fragments for sums[m, n] += a[m, k] * b[k, n].

    `stored` is the type of the operands in local memory: "float16", "float32" for tf32, or "int32" for words of four
    bytes (`templates.words`), of which b is (n, k).
    """

    m: int
    n: int
    k: int
    stored: str

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.m, self.n, self.k

    @property
    def words(self) -> bool:
        return self.stored == SUMS

    @property
    def sums(self) -> str:
        return SUMS if self.words else "float32"

    @property
    def a(self) -> tuple[int, int]:
        """Return the shape of the first operand."""
        return self.m, self.k

    @property
    def b(self) -> tuple[int, int]:
        """Return the shape of the second operand, in the order in which it is stored."""
        return (self.n, self.k) if self.words else (self.k, self.n)

    def held(self, operand: str) -> str:
        """Return the type of the operand "a" or "b" in registers. Half precision stands for tf32 too."""
        if self.words:
            return INTEGERS if operand == "a" else WEIGHT
        return HALF

    def loaded(self, operand: str, read: Callable[[Any, Any], Any], row: Any, column: Any) -> Any:
        """Return a value of an operand from what is stored, which read(row, column) reads."""
        if self.words:
            return (read(row, column // BYTES) >> (8 * (column % BYTES))).astype(self.held(operand))
        return stored_as(read(row, column), self.held(operand))

    def product(self, value: Any, read: Callable[[Any, Any], Any], k: Any, n: Any) -> Any:
        """Multiply a value of the first operand by that of the second in row k and column n. read(row, column) reads
        the second in the order in which it is stored."""
        return value.astype(self.sums) * (read(n, k) if self.words else read(k, n)).astype(self.sums)


@functools.cache
def fragment_intrinsics(kind: Fragments) -> dict[str, str]:
    """Return the names of the intrinsics for fragments. The first call registers them.

    "a" and "b" load operands from local memory row by row, with any distance between rows. "clear" sets sums to zero,
    "multiply" adds a product, and "store" writes sums to local memory of scope `STORED`.
    """
    made = {
        "a": _load(kind, "a", kind.a, "row_major"),
        "b": _load(kind, "b", kind.b, "col_major" if kind.words else "row_major"),
        "clear": _clear(kind),
        "multiply": _multiply(kind),
        "store": _store(kind),
    }
    names = {name: f"edgetune.wmma_{kind.m}x{kind.n}x{kind.k}_{kind.stored}_{name}" for name in made}
    for name, (description, implementation) in made.items():
        TensorIntrin.register(names[name], description, implementation)
    return names


def _index(tensor: Any, stride: Any, rows: int, columns: int) -> Any:
    """Return the index of a fragment among those of its buffer."""
    per_row = stride // columns
    return tensor.elem_offset // stride // rows * per_row + tensor.elem_offset % stride // columns


def _load(kind: Fragments, operand: str, extents: tuple[int, int], order: str) -> tuple[Any, Any]:
    (m, n, k), (rows, columns), dtype, held = kind.shape, extents, kind.stored, kind.held(operand)
    scope, width = SCOPES[operand], columns // BYTES if kind.words else columns

    def loaded(tensor: Any, y: Any, x: Any) -> Any:
        return kind.loaded(operand, lambda i, j: tensor[i, j], y, x)

    @T.prim_func(s_tir=True)
    def description(source: T.handle, fragment: T.handle) -> None:
        S = T.match_buffer(source, (rows, width), dtype, align=64, offset_factor=width, scope="shared")
        F = T.match_buffer(fragment, (rows, columns), held, align=64, offset_factor=columns, scope=scope)
        with T.sblock("root"):
            T.reads(S[0:rows, 0:width])
            T.writes(F[0:rows, 0:columns])
            for i, j in T.grid(rows, columns):
                with T.sblock("load"):
                    y, x = T.axis.remap("SS", [i, j])
                    F[y, x] = loaded(S, y, x)

    @T.prim_func(s_tir=True)
    def implementation(source: T.handle, fragment: T.handle) -> None:
        s1, s0, f1, f0 = T.int32(), T.int32(), T.int32(), T.int32()
        S = T.match_buffer(
            source, (rows, width), dtype, align=64, offset_factor=width, scope="shared", strides=[s1, s0]
        )
        F = T.match_buffer(
            fragment, (rows, columns), held, align=64, offset_factor=columns, scope=scope, strides=[f1, f0]
        )
        with T.sblock("root"):
            T.reads(S[0:rows, 0:width])
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
                    order,
                    dtype="void",
                )
            )

    return description, implementation


def _clear(kind: Fragments) -> tuple[Any, Any]:
    (m, n, k), dtype, scope = kind.shape, kind.sums, SCOPES["sums"]
    nothing = tirx.const(0, dtype)

    @T.prim_func(s_tir=True)
    def description(fragment: T.handle) -> None:
        F = T.match_buffer(fragment, (m, n), dtype, align=64, offset_factor=n, scope=scope)
        with T.sblock("root"):
            T.reads()
            T.writes(F[0:m, 0:n])
            for i, j in T.grid(m, n):
                with T.sblock("clear"):
                    y, x = T.axis.remap("SS", [i, j])
                    F[y, x] = nothing

    @T.prim_func(s_tir=True)
    def implementation(fragment: T.handle) -> None:
        f1, f0 = T.int32(), T.int32()
        F = T.match_buffer(fragment, (m, n), dtype, align=64, offset_factor=n, scope=scope, strides=[f1, f0])
        with T.sblock("root"):
            T.reads()
            T.writes(F[0:m, 0:n])
            T.evaluate(T.tvm_fill_fragment(F.data, m, n, k, _index(F, f1, m, n), nothing, dtype="void"))

    return description, implementation


def _store(kind: Fragments) -> tuple[Any, Any]:
    (m, n, k), dtype, scope = kind.shape, kind.sums, SCOPES["sums"]

    @T.prim_func(s_tir=True)
    def description(fragment: T.handle, result: T.handle) -> None:
        F = T.match_buffer(fragment, (m, n), dtype, align=64, offset_factor=n, scope=scope)
        R = T.match_buffer(result, (m, n), dtype, align=64, offset_factor=n, scope=STORED)
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
        F = T.match_buffer(fragment, (m, n), dtype, align=64, offset_factor=n, scope=scope, strides=[f1, f0])
        R = T.match_buffer(result, (m, n), dtype, align=64, offset_factor=n, scope=STORED, strides=[r1, r0])
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
                    R.access_ptr("w", ptr_type=dtype),
                    r1,
                    "row_major",
                    dtype="void",
                )
            )

    return description, implementation


def _multiply(kind: Fragments) -> tuple[Any, Any]:
    (m, n, k), dtype = kind.shape, kind.sums
    first, second = kind.held("a"), kind.held("b")
    rows, columns = kind.b

    def times(value: Any, tensor: Any, z: Any, x: Any) -> Any:
        return kind.product(value, lambda i, j: tensor[i, j], z, x)

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle, sums: T.handle) -> None:
        A = T.match_buffer(a, (m, k), first, align=64, offset_factor=k, scope="wmma.matrix_a")
        B = T.match_buffer(b, (rows, columns), second, align=64, offset_factor=columns, scope="wmma.matrix_b")
        C = T.match_buffer(sums, (m, n), dtype, align=64, offset_factor=n, scope="wmma.accumulator")
        with T.sblock("root"):
            T.reads(C[0:m, 0:n], A[0:m, 0:k], B[0:rows, 0:columns])
            T.writes(C[0:m, 0:n])
            for i, j, s in T.grid(m, n, k):
                with T.sblock(""):
                    y, x, z = T.axis.remap("SSR", [i, j, s])
                    C[y, x] = C[y, x] + times(A[y, z], B, z, x)

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, sums: T.handle) -> None:
        a1, a0, b1, b0, c1, c0 = T.int32(), T.int32(), T.int32(), T.int32(), T.int32(), T.int32()
        A = T.match_buffer(a, (m, k), first, align=64, offset_factor=k, scope="wmma.matrix_a", strides=[a1, a0])
        B = T.match_buffer(
            b, (rows, columns), second, align=64, offset_factor=columns, scope="wmma.matrix_b", strides=[b1, b0]
        )
        C = T.match_buffer(sums, (m, n), dtype, align=64, offset_factor=n, scope="wmma.accumulator", strides=[c1, c0])
        with T.sblock("root"):
            T.reads(C[0:m, 0:n], A[0:m, 0:k], B[0:rows, 0:columns])
            T.writes(C[0:m, 0:n])
            T.evaluate(
                T.tvm_mma_sync(
                    C.data,
                    _index(C, c1, m, n),
                    A.data,
                    _index(A, a1, m, k),
                    B.data,
                    _index(B, b1, rows, columns),
                    C.data,
                    _index(C, c1, m, n),
                    dtype="void",
                )
            )

    return description, implementation
