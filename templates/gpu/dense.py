"""The template that computes dense layers on OpenCL and CUDA devices with a register tile. Start at `GpuDense`.

Data is (rows, in), weights are packed as (tiles, in, nb, ot, vec), and the output is (rows, out). A group computes `rt`
x `ri` rows by a tile of `nb` x `ot` x `vec` features, and neighbouring items read neighbouring weights. Few rows give
too few sums to keep a device busy: then `ks` items share each sum and add up their parts in local memory. Integers are
multiplied four inputs at a time (`templates.words`): what is said of inputs holds for words of them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.blocking import tile_sizes
from templates.gpu.dots import held_words, packed_words
from templates.gpu.limits import GpuLimits, gpu_limits, gpu_limits_of
from templates.gpu.stages import (
    Group,
    launch,
    launch_features,
    limit_constraints,
    own_loops,
    split_init,
    vector_widths,
    write_back,
)
from templates.integers import AS_GIVEN, INTEGERS, SUMS, Held, Types
from templates.space import Constraint, Knob, Space, Values, at_most
from templates.stages import as_float32, epilogue_operands, epilogue_value, new_schedule, unroll_tile
from templates.template import PLAIN, AnchorTemplate, Layouts
from templates.words import BYTES, in_dots, moved, word_of
from templates.words import product as words_product
from templates.workloads import Dense, dense_of
from tuning_db.record import Config, Workload

_SEEDS: dict[str, tuple[Values, ...]] = {
    "cpu": (
        {"vec": 16, "nb": 4, "ki": 4},
        {"vec": 8, "nb": 4, "ki": 4},
        {"vec": 16, "nb": 1, "ks": 4, "ki": 4},
        {"vec": 4, "nb": 2, "ki": 4},
    ),
    "nvidia": (
        {"vec": 4, "ot": 16, "ks": 16, "ki": 4},
        {"vec": 2, "ot": 32, "ks": 8, "ki": 4},
        {"vec": 4, "ot": 32, "ks": 4, "ki": 4},
        {"vec": 1, "ot": 64, "ki": 4},
    ),
    "other": (
        {"vec": 4, "ot": 16, "ks": 4, "ki": 4},
        {"vec": 4, "ot": 4, "ks": 16, "ki": 4},
        {"vec": 4, "ot": 32, "ki": 4},
        {"vec": 1, "ot": 64, "ki": 4},
    ),
}


class GpuDense(AnchorTemplate):
    """A template whose register tile has `ri` rows by `nb` vectors of `vec` features.

    Its other knobs: a group has `rt` by `ot` such tiles. `ks` items share each sum. `ki` inputs are unrolled.
    """

    name = "gpu.dense"
    op = "dense"
    dtypes = ("float32", "float16", INTEGERS)

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        return Layouts(PLAIN, PLAIN)

    def space(self, workload: Workload, target: Target) -> Space | None:
        limits = gpu_limits(target)
        if limits is None or not limits.stores(workload.dtype):
            return None
        dense = _in_steps(workload)
        knobs, constraints = _knobs(dense, limits), _constraints(dense, limits)
        seeds = tuple(at_most({**seed, "ri": 4}, knobs) for seed in _SEEDS.get(limits.family, _SEEDS["other"]))
        return Space(self.name, knobs, constraints, (*seeds, {}), lambda v: _features(dense, limits, v))

    def weight_key(self, workload: Workload, target: Target, config: Config) -> str:
        return " ".join(f"{name}={config[name]}" for name in ("nb", "ot", "vec", "ks", "ki"))

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        is_whole = workload.dtype == INTEGERS
        tiles, inputs, *tile = _weight_shape(_in_steps(workload), config.knobs)
        wide, deep = prod(tile), inputs * (BYTES if is_whole else 1)
        padded = np.pad(weight, ((0, tiles * wide - weight.shape[0]), (0, deep - weight.shape[1])))
        packed = np.ascontiguousarray(padded.reshape(tiles, wide, deep).transpose(0, 2, 1))
        if is_whole:
            packed = packed_words(packed, held_words(gpu_limits_of(target)))
        return packed.reshape(tiles, -1, *tile)

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        k, is_whole = config.knobs, workload.dtype == INTEGERS
        func = _compute(workload, k, held_words(gpu_limits_of(target)) if is_whole else AS_GIVEN)
        scheduled = _schedule_split(func, k) if k["ks"] > 1 else _schedule_whole(func, k)
        return in_dots(scheduled, data=_fills_words(dense_of(workload))) if is_whole else scheduled


def _in_steps(workload: Workload) -> Dense:
    """Return a dense layer with as many inputs as are read at a time: one, or a word of integers."""
    dense = dense_of(workload)
    return replace(dense, in_features=-(-dense.in_features // BYTES)) if workload.dtype == INTEGERS else dense


def _fills_words(dense: Dense) -> bool:
    """Tell whether a row of bytes is a row of words. Otherwise words are made of their bytes where they are read."""
    return dense.in_features % BYTES == 0


def _group(v: Values) -> Group:
    return Group(v["rt"], v["ks"], v["ot"])


def _local_bytes(v: Values) -> int:
    """Return the bytes of local memory for the parts of all sums of a group.

    If more items share a sum than there are values to add up, TVM also allocates the parts of the next groups, which
    are not used.
    """
    if v["ks"] == 1:
        return 0
    groups = -(-v["ks"] // (v["nb"] * v["vec"]))
    return 4 * groups * v["rt"] * v["ri"] * v["ks"] * v["nb"] * v["ot"] * v["vec"]


def _weight_shape(dense: Dense, v: Values) -> tuple[int, int, int, int, int]:
    """Return the shape (tiles, inputs, nb, ot, vec) of the packed weight.

    The inputs are filled up to a multiple of `ks` x `ki`, which the items that share a sum take at a time.
    """
    wide, step = v["nb"] * v["ot"] * v["vec"], v["ks"] * v["ki"]
    return -(-dense.out_features // wide), -(-dense.in_features // step) * step, v["nb"], v["ot"], v["vec"]


def _knobs(dense: Dense, limits: GpuLimits) -> tuple[Knob, ...]:
    vectors = -(-dense.out_features // limits.lanes)
    split = limits.shares_memory
    return (
        Knob("ri", tile_sizes(dense.rows, 8)),
        Knob("rt", tuple(r for r in (1, 2, 4, 8, 16) if r <= dense.rows)),
        Knob("nb", tuple(n for n in (1, 2, 3, 4, 6, 8) if n <= vectors)),
        Knob("vec", tuple(reversed(vector_widths(limits, limits.lanes)))),
        Knob("ot", tuple(o for o in (1, 2, 4, 8, 16, 32, 64, 128) if o <= dense.out_features)),
        Knob("ks", tuple(s for s in (1, 2, 4, 8, 16, 32) if s == 1 or (split and 4 * s <= dense.in_features))),
        Knob("ki", tuple(i for i in (1, 2, 4, 8, 16) if i <= dense.in_features)),
    )


def _constraints(dense: Dense, limits: GpuLimits) -> tuple[Constraint, ...]:
    def waste(v: Values) -> float:
        tiles, inputs, *tile = _weight_shape(dense, v)
        rows = -(-dense.rows // (v["rt"] * v["ri"])) * v["rt"] * v["ri"]
        return rows * tiles * prod(tile) * inputs / (dense.rows * dense.out_features * dense.in_features)

    def evenly(v: Values) -> bool:
        return v["nb"] * v["vec"] <= v["ks"] or v["nb"] * v["vec"] % v["ks"] == 0

    return (
        *limit_constraints(limits, _group, lambda v: v["ri"] * v["nb"] * v["vec"], _local_bytes),
        Constraint("the sums do not divide among the items that share them", evenly),
        Constraint("too many unrolled multiply-adds", lambda v: v["ri"] * v["nb"] * v["ki"] <= limits.max_unrolled),
        Constraint("too many features or inputs are computed in vain", lambda v: waste(v) <= 1.5),
        # A vector that is cut off in its middle is written value by value, and then its sums are no vectors either.
        Constraint(
            "unsplit sums need whole vectors of features", lambda v: v["ks"] > 1 or dense.out_features % v["vec"] == 0
        ),
    )


def _features(dense: Dense, limits: GpuLimits, v: Values) -> Mapping[str, float]:
    groups = _weight_shape(dense, v)[0] * -(-dense.rows // (v["rt"] * v["ri"]))
    return {
        **launch_features(limits, _group(v), groups, _local_bytes(v)),
        "flop_per_byte": 2.0 * v["ri"] * v["rt"] / 4.0,
        "accumulators": float(v["ri"] * v["nb"]),
        "sums": float(v["ri"] * v["nb"] * v["vec"]),
        "loads_per_fma": (v["nb"] + v["ri"]) / (v["nb"] * v["ri"]),
        "body_fmas": float(v["ri"] * v["nb"] * v["ki"]),
    }


def _compute(workload: Workload, k: Values, held: Held) -> tirx.PrimFunc:
    """Build the unscheduled function with the stages "sums" (if `ks` > 1: "parts"), on whole tiles, and "out".

    "out" applies the epilogue, and adds up the parts if there are any. Operands, weights and results are of the
    workload's type, sums are float32. Integers are `held` as words, and their sums are int32.
    """
    dense, epilogue, types = _in_steps(workload), workload.epilogue, Types.of(workload)
    tiles, inputs, *tile = _weight_shape(dense, k)
    tile_rows = k["rt"] * k["ri"]
    rows = -(-dense.rows // tile_rows) * tile_rows
    data, read = _data(workload, held)
    kind = held.weight if held.words else types.weight
    weight = te.placeholder((tiles, inputs + held.moved, *tile), name="weight", dtype=kind)
    extra = epilogue_operands(epilogue, dense.out_shape, types.extra)
    ko = te.reduce_axis((0, inputs // (k["ks"] * k["ki"])), "ko")
    ki = te.reduce_axis((0, k["ki"]), "ki")

    def upto(index: Any, extent: int, whole: int) -> Any:
        """Limit an index below `whole` to the last of the `extent` rows or inputs that exist.

        The results of further rows are cut off, and the weights of further inputs are zero.
        """
        return index if extent == whole else tirx.min(index, extent - 1)

    def product(part: Any, i: Any, t: Any, *feature: Any) -> Any:
        at = (ko * k["ks"] + part) * k["ki"] + ki
        value, tap = read(upto(i, dense.rows, rows), upto(at, dense.in_features, inputs)), weight[(t, at, *feature)]
        return words_product(value, tap) if held.words else value * as_float32(tap, types.weight)

    shape = (rows, tiles, *tile)
    if k["ks"] == 1:
        sums = te.compute(shape, lambda *index: te.sum(product(0, *index), axis=[ko, ki]), name="sums")
    else:
        parts = te.compute((k["ks"], *shape), lambda s, *index: te.sum(product(s, *index), axis=[ko, ki]), name="parts")

        def sums(*index: Any) -> Any:
            return functools.reduce(operator.add, (parts[(s, *index)] for s in range(k["ks"])))

    wide, vec = prod(tile), k["vec"]

    def result(i: Any, j: Any) -> Any:
        feature = (j % wide // (k["ot"] * vec), j % (k["ot"] * vec) // vec, j % vec)
        value = sums(i, j // wide, *feature)
        if held.moved:
            value = value + weight[(j // wide, inputs, *feature)]
        return epilogue_value(epilogue, value, extra, index=(i, j), dtype=types.extra, out_dtype=types.out)

    return te.create_prim_func([data, weight, *extra, te.compute(dense.out_shape, result, name="out")])


def _data(workload: Workload, held: Held) -> tuple[te.Tensor, Callable[[Any, Any], Any]]:
    """Return the data, and a function read(row, input) that reads a value of it as float32, or a word of integers."""
    dense, types = dense_of(workload), Types.of(workload)
    if not held.words:
        real = te.placeholder(dense.data_shape, name="data", dtype=types.data)
        return real, lambda i, at: as_float32(real[i, at], types.data)
    if _fills_words(dense):
        shape = (dense.rows, dense.in_features // BYTES)
        words = te.placeholder(shape, name="data", dtype=SUMS)
        return words, lambda i, at: moved(words[i, at]) if held.moved else words[i, at]
    bytes_ = te.placeholder(dense.data_shape, name="data", dtype=types.data)

    def joined(i: Any, at: Any) -> Any:
        """Join the bytes of a word. Those beyond the end have weights of zero."""
        word = word_of(lambda byte: bytes_[i, tirx.min(BYTES * at + byte, dense.in_features - 1)])
        return moved(word) if held.moved else word

    return bytes_, joined


def _schedule_whole(func: tirx.PrimFunc, k: Values) -> tirx.PrimFunc:
    """Schedule the loops as: groups | items | inputs | register tile."""
    sch = new_schedule(func)
    sums = sch.get_sblock("sums")
    i, t, b, o, v, ko, ki = sch.get_loops(sums)
    ib, it, ii = sch.split(i, [None, k["rt"], k["ri"]])
    sch.reorder(ib, t, it, o, ko, ki, ii, b, v)
    launch(sch, {"blockIdx.y": [ib], "blockIdx.x": [t], "threadIdx.z": [it], "threadIdx.x": [o]})
    write_back(sch, sums, o)
    unroll_tile(sch, [ki, ii, b, v])
    split_init(sch, sums, ko)
    return sch.mod["main"]


def _schedule_split(func: tirx.PrimFunc, k: Values) -> tirx.PrimFunc:
    """Schedule the split sums: the items of a group compute parts of sums, and then add them up and apply the epilogue.

    Parts are computed in registers and pass through local memory.
    """
    sch = new_schedule(func)
    i, j = sch.get_loops(sch.get_sblock("out"))
    ib, it, ii = sch.split(i, [None, k["rt"], k["ri"]])
    t, vector, o = sch.split(j, [None, k["nb"] * k["vec"], k["ot"]])
    sch.reorder(ib, t, it, o, ii, vector)
    launch(sch, {"blockIdx.y": [ib], "blockIdx.x": [t]})
    _schedule_parts(sch, t, k["ri"])
    # The items are split only now: if there are more of them than values to add up, TVM would otherwise compute the
    # next group's parts too.
    share, part = sch.split(vector, [None, k["ks"]])
    sch.reorder(it, part, o, ii, share)
    launch(sch, {"threadIdx.z": [it], "threadIdx.y": [part], "threadIdx.x": [o]})
    return sch.mod["main"]


def _schedule_parts(sch: Schedule, at: Any, rows: int) -> None:
    """Let each item sum up its part of the inputs in registers and store the sums in local memory."""
    parts = sch.get_sblock("parts")
    copy = sch.cache_write(parts, 0, "local")
    sch.set_scope(copy, 0, "shared")
    sch.compute_at(copy, at, preserve_unit_loops=True)
    s, i, t, b, o, v = own_loops(sch, copy)
    it, ii = sch.split(i, [None, rows])
    sch.reorder(it, s, o, ii, t, b, v)
    launch(sch, {"threadIdx.z": [it], "threadIdx.y": [s], "threadIdx.x": [o]})
    unroll_tile(sch, [ii, t, b, v])
    sch.compute_at(parts, o, preserve_unit_loops=True)
    *tile, ko, ki = own_loops(sch, parts)
    sch.reorder(ko, ki, *tile)
    unroll_tile(sch, [ki, *tile])
    split_init(sch, parts, ko)
