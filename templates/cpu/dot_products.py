"""The instructions of CPUs that multiply vectors of 8-bit integers and sum four neighbouring products each.

Start at `dot_product`, which says what a target has.
"""

# TVMScript writes the types of buffers as calls.
# mypy: disable-error-code="valid-type,untyped-decorator"

from __future__ import annotations

from functools import cache

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T
from tvm.target import Target

from templates.cpu.isa import has_feature, vector_unit
from templates.integers import QUAD


def has_dot_products(target: Target) -> bool:
    """Tell whether a CPU multiplies uint8 by int8 and adds four products to an int32 in one instruction."""
    return target.kind.name == "llvm" and _instruction(target) is not None


def dot_product(target: Target) -> str:
    """Return the name of the tensor intrinsic for a target that `has_dot_products`. It adds the products of four uint8
    values and (lanes, 4) int8 weights to `lanes` int32 sums."""
    instruction = _instruction(target)
    assert instruction is not None
    return _registered(vector_unit(target).lanes, instruction)


def _instruction(target: Target) -> str | None:
    """Return LLVM's name of the instruction for whole vectors, or None if the target has none."""
    if has_feature(target, "avx512vnni") or has_feature(target, "avxvnni"):
        return f"llvm.x86.avx512.vpdpbusd.{32 * vector_unit(target).lanes}"
    return "llvm.aarch64.neon.usdot.v4i32.v16i8" if has_feature(target, "i8mm") else None


@cache
def _registered(lanes: int, instruction: str) -> str:
    name, wide, vector = f"edgetune_{instruction}", f"int8x{lanes * QUAD}", f"int32x{lanes}"

    @T.prim_func(s_tir=True)
    def meaning(
        values: T.Buffer((4,), "uint8", offset_factor=1),
        weight: T.Buffer((lanes, 4), "int8", offset_factor=1),
        sums: T.Buffer((lanes,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(sums[0:lanes], values[0:4], weight[0:lanes, 0:4])
            T.writes(sums[0:lanes])
            for i in T.serial(0, lanes):
                for k in T.serial(0, 4):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        sums[vi] = sums[vi] + T.cast(values[vk], "int32") * T.cast(weight[vi, vk], "int32")

    @T.prim_func(s_tir=True)
    def code(
        values: T.Buffer((4,), "uint8", offset_factor=1),
        weight: T.Buffer((lanes, 4), "int8", offset_factor=1),
        sums: T.Buffer((lanes,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(sums[0:lanes], values[0:4], weight[0:lanes, 0:4])
            T.writes(sums[0:lanes])
            four = T.reinterpret(values.vload([0], "uint8x4"), dtype="int32")
            everywhere = T.reinterpret(T.broadcast(four, lanes), dtype=wide)
            weights = weight.vload([0, 0], dtype=wide)
            before = sums.vload([0], dtype=vector)
            sums[T.ramp(T.int32(0), 1, lanes)] = T.call_llvm_pure_intrin(
                T.llvm_lookup_intrinsic_id(instruction), before, everywhere, weights, dtype=vector
            )

    TensorIntrin.register(name, meaning, code)
    return name
