"""Makes kernels that do nothing but multiply 8-bit integers, by the instruction that our kernels have for it. Start at
`integer_multipliers`.

A CPU's kernel keeps a register tile of sums as a convolution does: each step loads some vectors of weights, and
multiplies every pixel's group of values with each of them. The operands of a few steps are used again and again, so
that they stay in the nearest cache.
"""

# TVMScript writes the types of buffers as calls.
# mypy: disable-error-code="valid-type,untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script import tirx as T

from templates.cpu.dot_products import Products, products_of
from templates.gpu import dots  # noqa: F401  registers what words are multiplied by
from templates.gpu.limits import gpu_limits_of
from templates.integers import SUMS
from templates.words import BYTES, dot
from tuner.devices.base import Device

_STEPS = 50_000
_ROUNDS = 16  # steps after which the operands are used again; a power of 2
_UNROLLED = 4  # steps, so that finding the operands takes little of the time
_TILES = ((1, 12), (2, 6), (3, 8))  # vectors of weights, and pixels: for 16 registers and for 32. The best one counts.
_CHAINS = 12  # of a GPU's item
_GROUPS = ((1, 8), (1, 16), (64, 1), (256, 1))  # items of a group and lanes on a GPU; the best one counts
_GROUPS_PER_UNIT = 8
_GROUP_STEPS = 320_000  # of each chain, of all items of a group together: a launch does not count beside them
_WORD = 0x01FF02FE  # the four weights that a GPU multiplies by


@dataclass(frozen=True)
class VectorProducts:
    """A CPU's kernel, which sums products by `unit`. Its operands are values (rounds, pixels, group), weights (rounds,
    blocks, lanes, group) and the sums (threads, pixels, blocks, lanes). Each thread makes all `steps`."""

    unit: Products
    threads: int
    blocks: int
    pixels: int
    steps: int = _STEPS

    @property
    def flop(self) -> float:
        chains = self.threads * self.blocks * self.pixels
        return 2.0 * self.steps * chains * self.unit.lanes * self.unit.held.group

    def operands(self) -> Sequence[np.ndarray]:
        rng, held, lanes = np.random.default_rng(0), self.unit.held, self.unit.lanes
        values = rng.integers(-100, 100, (_ROUNDS, self.pixels, held.group)).astype(held.data)
        weights = rng.integers(-127, 128, (_ROUNDS, self.blocks, lanes, held.group)).astype(held.weight)
        return values, weights, np.zeros((self.threads, self.pixels, self.blocks, lanes), SUMS)

    def prim_func(self) -> tirx.PrimFunc:
        return _vector_kernel(self)


@dataclass(frozen=True)
class WordProducts:
    """A GPU's kernel, which adds to words the products of their own bytes with those of `_WORD`. `shape` is that of its
    operands (start, out): items, chains and lanes."""

    groups: int
    shape: tuple[int, int, int]
    steps: int

    @property
    def flop(self) -> float:
        return 2.0 * BYTES * self.steps * np.prod(self.shape, dtype=float)

    def operands(self) -> Sequence[np.ndarray]:
        start = np.random.default_rng(0).integers(-(1 << 31), 1 << 31, self.shape).astype(SUMS)
        return start, np.zeros_like(start)

    def prim_func(self) -> tirx.PrimFunc:
        return _word_kernel(self.groups, self.steps, *self.shape)


def integer_multipliers(device: Device) -> Sequence[VectorProducts | WordProducts]:
    """Return kernels that multiply integers on a device. The fastest of them reaches its peak. There are none for a CPU
    without an instruction for it."""
    if device.is_host:
        unit = products_of(device.target)
        return [] if unit is None else [VectorProducts(unit, device.threads, *tile) for tile in _TILES]
    groups = int(device.key.attrs["compute_units"]) * _GROUPS_PER_UNIT
    limits = gpu_limits_of(device.target)
    return [
        WordProducts(groups, (groups * items, _CHAINS, lanes), _GROUP_STEPS // items)
        for items, lanes in _GROUPS
        if items <= limits.max_threads and lanes <= limits.max_vector
    ]


def _round(several: Any, step: Any) -> Any:
    """Return which operands a step reads: step `step` of `several` unrolled ones."""
    return several % (_ROUNDS // _UNROLLED) * _UNROLLED + step


def _vector_kernel(kernel: VectorProducts) -> tirx.PrimFunc:
    unit, threads, blocks, pixels, steps = kernel.unit, kernel.threads, kernel.blocks, kernel.pixels, kernel.steps
    lanes, group, data, weight = unit.lanes, unit.held.group, unit.held.data, unit.held.weight
    few, vector, wide = f"{data}x{group}", f"int32x{lanes}", f"{weight}x{lanes * group}"

    @T.prim_func(s_tir=True)
    def main(
        values: T.Buffer((_ROUNDS, pixels, group), data),
        weights: T.Buffer((_ROUNDS, blocks, lanes, group), weight),
        out: T.Buffer((threads, pixels, blocks, lanes), "int32"),
    ) -> None:
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for t in T.parallel(threads):
            with T.sblock("thread"):
                sums = T.sblock_alloc_buffer((pixels, blocks, lanes), "int32", scope="local")
                for p in T.unroll(pixels):
                    for b in T.unroll(blocks):
                        for v in T.vectorized(lanes):
                            sums[p, b, v] = 0
                for several in range(steps // _UNROLLED):
                    for step in T.unroll(_UNROLLED):
                        for p in T.unroll(pixels):
                            for b in T.unroll(blocks):
                                sums[p, b, T.ramp(T.int32(0), 1, lanes)] = unit.code(
                                    unit,
                                    sums.vload([p, b, 0], dtype=vector),
                                    unit.everywhere(values.vload([_round(several, step), p, 0], few)),
                                    weights.vload([_round(several, step), b, 0, 0], dtype=wide),
                                )
                for p in T.unroll(pixels):
                    for b in T.unroll(blocks):
                        for v in T.vectorized(lanes):
                            out[t, p, b, v] = sums[p, b, v]

    return main


def _word_kernel(groups: int, steps: int, items: int, chains: int, lanes: int) -> tirx.PrimFunc:
    """Return a kernel with `items` items in all `groups` together. Words are multiplied with what they have become, so
    that no compiler can compute a product before the loop."""
    size, factor = items // groups, tirx.const(_WORD, SUMS)

    @T.prim_func(s_tir=True)
    def main(
        start: T.Buffer((items, chains, lanes), "int32"),
        out: T.Buffer((items, chains, lanes), "int32"),
    ) -> None:
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for g in T.thread_binding(groups, thread="blockIdx.x"):
            for i in T.thread_binding(size, thread="threadIdx.x"):
                with T.sblock("item"):
                    acc = T.sblock_alloc_buffer((chains, lanes), "int32", scope="local")
                    for c in T.unroll(chains):
                        for v in T.vectorized(lanes):
                            acc[c, v] = start[g * size + i, c, v]
                    for _step in range(steps):
                        for c in T.unroll(chains):
                            for v in T.vectorized(lanes):
                                acc[c, v] = dot(acc[c, v], acc[c, v], factor)
                    for c in T.unroll(chains):
                        for v in T.vectorized(lanes):
                            out[g * size + i, c, v] = acc[c, v]

    return main
