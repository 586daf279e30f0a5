"""Look up bytes in a table of 256 by whole vectors. Start at `lookup`."""

# TVMScript writes the types of buffers as calls.
# mypy: disable-error-code="valid-type,untyped-decorator"

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T
from tvm.target import Target

from templates.cpu.isa import has_feature

_LANES = 64
_CHUNK = 64  # vectors that a thread takes at once


def looks_up_vectors(target: Target) -> bool:
    """Tell whether a CPU has instructions that look up a vector of bytes: AVX512-VBMI."""
    return target.kind.name == "llvm" and has_feature(target, "avx512vbmi")


def lookup(count: int) -> tirx.PrimFunc:
    """Return the function (table, indices, out) with out[i] = table[indices[i]], for `count` bytes. A vector is looked
    up in each half of the table, and the highest bit of an index chooses."""
    vectors, rest = divmod(count, _LANES)
    chunks = -(-vectors // _CHUNK)

    @T.prim_func(s_tir=True)
    def function(
        table: T.Buffer((256,), "uint8"), indices: T.Buffer((count,), "uint8"), out: T.Buffer((count,), "uint8")
    ) -> None:
        for chunk in T.parallel(chunks):
            for vector in T.serial(T.min(_CHUNK, vectors - chunk * _CHUNK)):
                at = (chunk * _CHUNK + vector) * _LANES
                index = indices.vload([at], "uint8x64")
                low, high = _in_half(table, index, 0), _in_half(table, index, 128)
                out[T.ramp(at, 1, 64)] = T.Select(index < T.broadcast(T.uint8(128), 64), low, high)
        for i in T.serial(rest):
            out[vectors * _LANES + i] = table[T.cast(indices[vectors * _LANES + i], "int32")]

    return function


def _in_half(table: Any, index: Any, first: int) -> Any:
    """Look a vector of indices up in the half of the table that begins at `first`, by their lowest seven bits."""
    number = T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpermi2var.qi.512")
    one, other = (table.vload([at], "uint8x64") for at in (first, first + _LANES))
    return T.call_llvm_pure_intrin(number, one, index, other, dtype="uint8x64")
