"""The template that computes convolutions of 8-bit integers in small groups of channels on a CPU.

It has the knobs and loops of `cpu.grouped`. A few neighbouring channels of a pixel are one number, a word, as the
instructions of `cpu.dot_products` multiply them. Every lane of a sum reads the words of its own group: they are moved
there by a shuffle. A group with fewer channels than a word shares its word with its neighbours, whose weights are zero.
Data is (N, C/v, H, W, v), weights are (C/v, R S, words of a group, v, channels of a word), and the output is
(N, C/v, OH, OW, v).
"""

# TVMScript writes the types of buffers as calls.
# mypy: disable-error-code="valid-type,untyped-decorator"

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T
from tvm.target import Target

from templates.cpu.dot_products import Products, multiplied_by, products_of
from templates.cpu.grouped import GroupedConv, schedule_groups
from templates.depthwise import reach, reads_outside
from templates.integers import INTEGERS, Held, Types, lack, lacking
from templates.space import Space
from templates.stages import border_of, epilogue_operands, epilogue_value, padded_with, zero
from templates.workloads import Conv2d, conv_of
from tuning_db.record import Config, Workload


class IntegerGroupedConv(GroupedConv):
    """A template that has the knobs of `GroupedConv`, for integers."""

    name = (
        "cpu.conv2d_by_group_integer"  # before cpu.conv2d_integer, which computes the same workloads in merged groups
    )
    dtypes = (INTEGERS,)

    def _converts(self, target: Target) -> bool:
        return multiplied_by(target).held.converted

    def space(self, workload: Workload, target: Target) -> Space | None:
        return super().space(workload, target) if products_of(target) is not None else None

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        products = multiplied_by(target)
        held, lanes = products.held, products.lanes
        packed = _by_words(super().pack_weight(workload, target, config, weight), held.group)
        if held.moved:
            last = lacking(packed, held.group)
            steps = packed.shape[2]
            last = np.pad(last, ((0, 0), (0, -last.shape[1] % steps), (0, 0), (0, 0)))
            packed = np.concatenate([packed, last.reshape(len(last), -1, steps, lanes, held.group)], 1)
        return np.ascontiguousarray(packed, held.weight)

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        products, conv = multiplied_by(target), conv_of(workload)
        func = _compute(workload, products, config["tw"])
        return schedule_groups(func, conv, config.knobs, _product(products, _wide(conv, products.held)))


def _wide(conv: Conv2d, held: Held) -> int:
    """Return of how many channels a lane reads the words: those of its group, or of a word if these are more."""
    return max(conv.in_channels // conv.groups, held.group)


def _by_words(weight: np.ndarray, word: int) -> np.ndarray:
    """Return weights (C/v, R, S, channels of a group, v) as (C/v, R S, words, v, channels of a word)."""
    blocks, r, s, group, lanes = weight.shape
    if group < word:
        wide = np.zeros((blocks, r, s, word, lanes), weight.dtype)
        for lane in range(lanes):
            first = lane % word // group * group  # of the lane's own channels in the word
            wide[..., first : first + group, lane] = weight[..., lane]
        weight, group = wide, word
    return weight.reshape(blocks, r * s, group // word, word, lanes).swapaxes(-1, -2)


def _compute(workload: Workload, products: Products, tw: int) -> tirx.PrimFunc:
    conv, epilogue, types, held = conv_of(workload), workload.epilogue, Types.of(workload), products.held
    lanes, word, taps = products.lanes, held.group, prod(conv.kernel)
    blocks, wide = -(-conv.in_channels // lanes), _wide(conv, held)
    steps, parts = wide // word, 4 // word  # `parts` hold what sums of moved data lack
    (sy, sx), (dy, dx) = conv.strides, conv.dilation
    high, across = conv.out_height, -(-conv.out_width // tw) * tw
    rows = taps + (-(-parts // steps) if held.moved else 0)
    data = te.placeholder((conv.batch, blocks, conv.height, conv.width, lanes), name="data", dtype=types.data)
    weight = te.placeholder((blocks, rows, steps, lanes, word), name="weight", dtype=held.weight)
    out_shape = (conv.batch, blocks, conv.out_height, conv.out_width, lanes)
    extra = epilogue_operands(epilogue, out_shape, types.extra)
    padded = held.converted or reads_outside(conv, high, across)
    source = _padded(data, conv, (high, across), border_of(epilogue, extra), held) if padded else data
    axes = {"kh": conv.kernel[0], "kw": conv.kernel[1], "ii": wide}
    kh, kw, ii = (te.reduce_axis((0, extent), name) for name, extent in axes.items())

    def total(n: Any, c: Any, y: Any, x: Any, v: Any) -> Any:
        value = source[n, c, y * sy + kh * dy, x * sx + kw * dx, v // wide * wide + ii]
        tap = weight[c, kh * conv.kernel[1] + kw, ii // word, v, ii % word]
        return te.sum(held.product(value, tap), axis=[kh, kw, ii])

    sums = te.compute((conv.batch, blocks, high, across, lanes), total, name="conv")

    def result(*index: Any) -> Any:
        summed, (_, c, _, _, v) = sums(*index), index
        if held.moved:
            summed = summed + lack(
                lambda part, lane, i: weight[c, taps + part // steps, part % steps, lane, i], v, lanes=lanes, group=word
            )
        return epilogue_value(epilogue, summed, extra, index=index, dtype=types.extra, out_dtype=types.out)

    return te.create_prim_func([data, weight, *extra, te.compute(out_shape, result, name="out")])


def _padded(data: te.Tensor, conv: Conv2d, pixels: tuple[int, int], border: Any, held: Held) -> te.Tensor:
    """Return the stage "pad": blocked data as they are held, with `border` around them as far as so many rows and
    columns of output pixels read."""
    n, blocks, _, _, lanes = data.shape
    (top, left), outside = conv.padding[:2], zero(INTEGERS) if border is None else border

    def value(n: Any, c: Any, y: Any, x: Any, v: Any) -> Any:
        size = conv.height, conv.width
        return held.convert(padded_with(outside, lambda py, px: data[n, c, py, px, v], y - top, x - left, size=size))

    return te.compute((n, blocks, *reach(conv, *pixels), lanes), value, name="pad")


@cache
def _product(unit: Products, wide: int) -> str:
    """Return the name of the intrinsic that adds to a vector of sums the products of all words of the lanes' groups.
    The first call registers it. A lane reads the words of `wide` channels, which divide the number of lanes."""
    lanes, word, data, kind = unit.lanes, unit.held.group, unit.held.data, unit.held.weight
    steps, words, product = wide // word, lanes // word, unit.held.product
    vector, weights = f"int32x{lanes}", f"{kind}x{lanes * word}"

    def updated(sums: Any, values: Any, weight: Any) -> Any:
        """Return the new sums."""
        total = sums.vload([0], dtype=vector)
        held = values.vload([0], dtype=f"{data}x{lanes}")
        held = T.reinterpret(held, dtype=unit.together if words == 1 else f"{unit.together}x{words}")
        for i in range(steps):
            own = [tirx.const(lane // wide * steps + i, "int32") for lane in range(lanes)]
            moved = T.broadcast(held, lanes) if words == 1 else tirx.Shuffle([held] * word, own)  # TVM wants as many
            total = unit.code(unit, total, unit.apart(moved), weight.vload([i, 0, 0], dtype=weights))
        return total

    @T.prim_func(s_tir=True)
    def meaning(
        values: T.Buffer((lanes,), data, offset_factor=lanes),
        weight: T.Buffer((steps, lanes, word), kind, offset_factor=lanes),
        sums: T.Buffer((lanes,), "int32", offset_factor=lanes, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(sums[0:lanes], values[0:lanes], weight[0:steps, 0:lanes, 0:word])
            T.writes(sums[0:lanes])
            for i, lane in T.grid(wide, lanes):
                with T.sblock("update"):
                    v, vi = T.axis.remap("SR", [lane, i])
                    sums[v] = sums[v] + product(values[v // wide * wide + vi], weight[vi // word, v, vi % word])

    @T.prim_func(s_tir=True)
    def code(
        values: T.Buffer((lanes,), data, offset_factor=lanes),
        weight: T.Buffer((steps, lanes, word), kind, offset_factor=lanes),
        sums: T.Buffer((lanes,), "int32", offset_factor=lanes, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(sums[0:lanes], values[0:lanes], weight[0:steps, 0:lanes, 0:word])
            T.writes(sums[0:lanes])
            sums[T.ramp(T.int32(0), 1, lanes)] = updated(sums, values, weight)

    name = f"{unit.name}_in_groups_of_{wide}"
    TensorIntrin.register(name, meaning, code)
    return name
