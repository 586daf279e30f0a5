"""The instructions of CPUs that multiply vectors of 8-bit integers and sum neighbouring products, in int32 and exactly.

Start at `products_of`, which says what a target has.
"""

# TVMScript writes the types of buffers as calls.
# mypy: disable-error-code="valid-type,untyped-decorator"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T
from tvm.target import Target

from templates.cpu.isa import has_feature, vector_unit
from templates.integers import WEIGHT, Held

_Code = Callable[["Products", Any, Any, Any], Any]


@dataclass(frozen=True)
class Products:
    """An instruction that a CPU with the LLVM feature `feature` has. `instruction` is LLVM's name of it, in which
    {bits} stands for those of a vector of `lanes` int32 sums; 0 lanes mean as many as the CPU's vectors have. `held`
    says what it multiplies. `code` makes the expression for new sums of old sums, (lanes * group) values and as many
    weights. `pays` tells whether quantised networks are faster in integers than in float32.
    """

    feature: str
    instruction: str
    held: Held
    code: _Code
    lanes: int = 0
    pays: bool = True

    @property
    def name(self) -> str:
        """Return the name that its tensor intrinsic is registered by."""
        return f"edgetune_{self.instruction.format(bits=32 * self.lanes)}_{self.held.weight}"

    def call(self, *operands: Any, dtype: str) -> Any:
        """Make a call of the instruction."""
        number = T.llvm_lookup_intrinsic_id(self.instruction.format(bits=32 * self.lanes))
        return T.call_llvm_pure_intrin(number, *operands, dtype=dtype)

    @property
    def together(self) -> str:
        """Return the type of an integer that is as wide as a group of values."""
        return f"int{self.held.group * np.dtype(self.held.data).itemsize * 8}"

    def apart(self, groups: Any) -> Any:
        """Take a vector of integers of the type `together` apart into the values of every lane's group."""
        return T.reinterpret(groups, dtype=f"{self.held.data}x{self.lanes * self.held.group}")

    def everywhere(self, values: Any) -> Any:
        """Repeat a group of values for every lane."""
        return self.apart(T.broadcast(T.reinterpret(values, dtype=self.together), self.lanes))


def _dot_product(unit: Products, sums: Any, values: Any, weights: Any) -> Any:
    """Sum four products each, and add them to the sums."""
    return unit.call(sums, values, weights, dtype=f"int32x{unit.lanes}")


def _pair_product(unit: Products, sums: Any, values: Any, weights: Any) -> Any:
    """Sum the products of two numbers each in int16, which are exact in int32, and subtract them from the sums."""
    if unit.held.weight == WEIGHT:
        weights = T.cast(weights, f"int16x{2 * unit.lanes}")
    return _changed("llvm.vp.sub", sums, unit.call(values, weights, dtype=f"int32x{unit.lanes}"))


def _long_product(unit: Products, sums: Any, values: Any, weights: Any) -> Any:
    """Multiply numbers in int8 to products in int16, and add two neighbouring ones each to the sums."""
    products = unit.call(values, weights, dtype=f"int16x{2 * unit.lanes}")
    pairs = T.llvm_lookup_intrinsic_id("llvm.aarch64.neon.saddlp")
    return _changed("llvm.vp.add", sums, T.call_llvm_pure_intrin(pairs, products, dtype=f"int32x{unit.lanes}"))


def _changed(change: str, sums: Any, products: Any) -> Any:
    """Add products to the sums, or subtract them, by an operation that LLVM's optimiser does not reorder. Where it adds
    up the products of several steps first, they do not fit into the registers. On x86 the code generator reorders
    additions, too, but no subtractions: the data are negated there."""
    lanes = sums.ty.dtype.lanes
    every, change = T.broadcast(T.bool(True), lanes), T.llvm_lookup_intrinsic_id(change)
    return T.call_llvm_pure_intrin(change, sums, products, every, T.int32(lanes), dtype=f"int32x{lanes}")


def _all_operands(blocks: int, pixels: int) -> int:
    """Return how many registers hold operands where all of a step's are loaded first."""
    return blocks + pixels


_LOADED = Held(beside=_all_operands)
_PAIRS = Held("int16", "int16", 2, negated=True, beside=lambda blocks, pixels: blocks + pixels + 1)
_LONG = Held("int8", group=2, beside=lambda blocks, pixels: blocks + pixels + 2)

# The first whose feature the target has decides. vpmaddubsw, which AVX2 has for uint8 by int8, saturates its sums in
# int16: pairs are widened to int16 before they are multiplied.
_INSTRUCTIONS = (
    Products("avx512vnni", "llvm.x86.avx512.vpdpbusd.{bits}", Held(), _dot_product),
    Products("avxvnni", "llvm.x86.avx512.vpdpbusd.{bits}", _LOADED, _dot_product),
    Products("avx512bw", "llvm.x86.avx512.pmaddw.d.512", _PAIRS, _pair_product, 16),
    Products("avx2", "llvm.x86.avx2.pmadd.wd", _PAIRS, _pair_product, 8),
    Products("i8mm", "llvm.aarch64.neon.usdot", _LOADED, _dot_product, 4),
    Products("dotprod", "llvm.aarch64.neon.sdot", Held("int8", beside=_all_operands), _dot_product, 4),
    # Winograd's algorithm in float32 needs about half of the time that this takes for 3x3 convolutions, which most
    # networks spend their time in; other layers gain (estimated by benchmarks/arm_int8.py).
    Products("neon", "llvm.aarch64.neon.smull", _LONG, _long_product, 4, pays=False),
)


def products_of(target: Target) -> Products | None:
    """Return the instruction by which a target multiplies integers, with as many lanes as its vectors have, or None if
    it is no CPU or has no such instruction."""
    if target.kind.name != "llvm":
        return None
    lanes = vector_unit(target).lanes
    found = next((unit for unit in _INSTRUCTIONS if has_feature(target, unit.feature)), None)
    return replace(found, lanes=lanes) if found is not None and found.lanes in (0, lanes) else None


def multiplied_by(target: Target, *, narrow: bool = False) -> Products:
    """Return `products_of` a target that has such. Weights that are held in int16 are held in int8 if they are to be
    `narrow`, and are widened where they are read."""
    found = products_of(target)
    assert found is not None
    return replace(found, held=replace(found.held, weight=WEIGHT)) if narrow else found


def intrinsic(products: Products) -> str:
    """Return the name of the instruction's tensor intrinsic. It adds the products of a group of values and (lanes,
    group) weights to `lanes` int32 sums."""
    return _registered(products)


@cache
def _registered(unit: Products) -> str:
    lanes, group, data, kind = unit.lanes, unit.held.group, unit.held.data, unit.held.weight
    few, vector, wide = f"{data}x{group}", f"{unit.held.sums}x{lanes}", f"{kind}x{lanes * group}"
    product, kept = unit.held.product, unit.held.sums

    @T.prim_func(s_tir=True)
    def meaning(
        values: T.Buffer((group,), data, offset_factor=1),
        weight: T.Buffer((lanes, group), kind, offset_factor=1),
        sums: T.Buffer((lanes,), kept, offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(sums[0:lanes], values[0:group], weight[0:lanes, 0:group])
            T.writes(sums[0:lanes])
            for i in T.serial(0, lanes):
                for k in T.serial(0, group):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        sums[vi] = sums[vi] + product(values[vk], weight[vi, vk])

    @T.prim_func(s_tir=True)
    def code(
        values: T.Buffer((group,), data, offset_factor=1),
        weight: T.Buffer((lanes, group), kind, offset_factor=1),
        sums: T.Buffer((lanes,), kept, offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(sums[0:lanes], values[0:group], weight[0:lanes, 0:group])
            T.writes(sums[0:lanes])
            each = unit.everywhere(values.vload([0], few))
            before = sums.vload([0], dtype=vector)
            weights = weight.vload([0, 0], dtype=wide)
            sums[T.ramp(T.int32(0), 1, lanes)] = unit.code(unit, before, each, weights)

    TensorIntrin.register(unit.name, meaning, code)
    return unit.name
