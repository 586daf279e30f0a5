"""The template that computes dense layers on a CPU with a register tile of rows by output features.

Data is (rows, in), weights are packed as (out / (nb v), in, nb, v), and the output is (rows, out). With one row the
weights are read once and the layer runs at memory speed. Several rows share each load of a weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.target import Target

from templates.blocking import divisors, tile_sizes
from templates.cpu.isa import VectorUnit, threads_of, vector_unit
from templates.cpu.product_tiles import Product
from templates.cpu.stages import EVEN, spread, waiting
from templates.rewrite import CACHE_LINE_FLOATS, mark, prefetch, wrap_marked_loop
from templates.space import Constraint, Knob, Space, Values
from templates.stages import epilogue_operands, epilogue_value, new_schedule, unroll_tile
from templates.template import PLAIN, AnchorTemplate, Layouts
from templates.workloads import Dense, dense_of
from tuning_db.record import Config, Workload

MAX_UNROLLED = 350
_FEW_ROWS = 3


class PackedDense(AnchorTemplate):
    """A template whose register tile has `rows` rows and `nb` vectors of output features.

    Its other knobs: `ki` inputs are unrolled. `split` says what runs in parallel: tiles of output features ("channels")
    or of rows ("rows"). `prefetch` says how many inputs ahead weights are fetched (0: none are).
    """

    name = "cpu.dense"
    op = "dense"

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        return Layouts(PLAIN, PLAIN)

    def space(self, workload: Workload, target: Target) -> Space | None:
        if target.kind.name != "llvm":
            return None
        unit, dense = vector_unit(target), dense_of(workload)
        vectors = -(-dense.out_features // unit.lanes)
        knobs = (
            Knob("nb", tuple(n for n in (1, 2, 3, 4, 6, 8) if n <= vectors)),
            Knob("rows", tile_sizes(dense.rows, 14)),
            Knob("ki", divisors(dense.in_features, 16)),
            Knob("split", ("channels", "rows") if dense.rows > 1 else ("channels",)),
            Knob("prefetch", tuple(p for p in (0, 16, 32, 64) if p < dense.in_features)),
        )
        constraints = (
            Constraint("the register tile does not fit", lambda v: v["nb"] * v["rows"] <= unit.accumulators),
            Constraint("too many unrolled multiply-adds", lambda v: v["nb"] * v["rows"] * v["ki"] <= MAX_UNROLLED),
        )
        seeds = _seeds(dense, knobs[0].values, unit=unit, threads=threads_of(target))
        return Space(self.name, knobs, constraints, seeds, lambda v: _features(dense, unit.lanes, v))

    def weight_key(self, workload: Workload, target: Target, config: Config) -> str:
        return f"nb={config['nb']}"

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        lanes, nb = vector_unit(target).lanes, config["nb"]
        out_features, in_features = weight.shape
        tiles = -(-out_features // (nb * lanes))
        padded = np.pad(weight, ((0, tiles * nb * lanes - out_features), (0, 0)))
        return np.ascontiguousarray(padded.reshape(tiles, nb, lanes, in_features).transpose(0, 3, 1, 2))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        dense = dense_of(workload)
        func = _compute(dense, vector_unit(target).lanes, workload.epilogue, nb=config["nb"], tile_rows=config["rows"])
        func = _schedule(func, config.knobs)
        return _prefetch_weights(func, config.knobs) if config["prefetch"] else func

    def spread(self, workload: Workload, target: Target, config: Config) -> Config:
        dense, lanes = dense_of(workload), vector_unit(target).lanes

        def chunks(v: Values) -> int:
            return -(-dense.rows // v["rows"]) if v["split"] == "rows" else -(-dense.out_features // (lanes * v["nb"]))

        splits = ("channels", "rows") if dense.rows > 1 else ()
        return spread(config, [{"split": split} for split in splits], chunks, threads_of(target))


def _seeds(dense: Dense, widths: Sequence[int], *, unit: VectorUnit, threads: int) -> tuple[Values, ...]:
    """Return the best tiles. Weights that few rows share come from memory, and are fetched ahead. Where many rows share
    them they lie in a cache, and a third of the time would be spent on fetching. Threads share out the channels, or the
    rows where they would wait less."""
    vectors = -(-dense.out_features // unit.lanes)
    tiles = Product(dense.rows, vectors, dense.in_features, unit.lanes, unit.accumulators).tiles(
        tile_sizes(dense.rows, 14), widths
    )
    ki = max(divisors(dense.in_features, 4))
    ahead = 32 if dense.in_features > 32 else 0
    fetched = (ahead, 0) if dense.rows <= _FEW_ROWS else (0, ahead)

    def split(rows: int, nb: int) -> str:
        channels = waiting(-(-vectors // nb), threads)
        return "channels" if channels <= max(EVEN, waiting(-(-dense.rows // rows), threads)) else "rows"

    return tuple(
        {"nb": nb, "rows": rows, "ki": ki, "prefetch": p, "split": split(rows, nb)}
        for p in dict.fromkeys(fetched)
        for rows, nb in tiles[:3]
    )


def _features(dense: Dense, lanes: int, v: Values) -> Mapping[str, float]:
    acc = v["nb"] * v["rows"]
    return {
        "accumulators": float(acc),
        "loads_per_fma": (v["nb"] + v["rows"]) / acc,
        "body_fmas": float(acc * v["ki"]),
        "chunks": float(-(-dense.out_features // (lanes * v["nb"]))),
    }


def _compute(dense: Dense, lanes: int, epilogue: tuple[str, ...], *, nb: int, tile_rows: int) -> tirx.PrimFunc:
    wide = nb * lanes
    tiles = -(-dense.out_features // wide)
    padded_rows = -(-dense.rows // tile_rows) * tile_rows
    data = te.placeholder((dense.rows, dense.in_features), name="data")
    weight = te.placeholder((tiles, dense.in_features, nb, lanes), name="weight")
    extra = epilogue_operands(epilogue, dense.out_shape)
    k = te.reduce_axis((0, dense.in_features), "k")
    last = dense.rows - 1

    def row(i: tirx.PrimExpr) -> tirx.PrimExpr:
        return i if padded_rows == dense.rows else tirx.min(i, last)  # rows beyond the end repeat the last row

    sums = te.compute(
        (padded_rows, tiles, nb, lanes),
        lambda i, o, b, v: te.sum(data[row(i), k] * weight[o, k, b, v], axis=k),
        name="sums",
    )
    out = te.compute(
        dense.out_shape,
        lambda i, j: epilogue_value(epilogue, sums[i, j // wide, j % wide // lanes, j % lanes], extra, index=(i, j)),
        name="out",
    )
    return te.create_prim_func([data, weight, *extra, out])


def _schedule(func: tirx.PrimFunc, k: Values) -> tirx.PrimFunc:
    sch = new_schedule(func)
    sums, out = sch.get_sblock("sums"), sch.get_sblock("out")
    i, o, b, v, kk = sch.get_loops(sums)
    io, ii = sch.split(i, [None, k["rows"]])
    ko, ki = sch.split(kk, [None, k["ki"]])
    outer = (o, io) if k["split"] == "channels" else (io, o)
    sch.reorder(*outer, ko, ki, ii, b, v)
    sch.parallel(outer[0])
    mark(sch, ko)
    write = sch.cache_write(sums, 0, "local")
    sch.reverse_compute_at(write, outer[1], preserve_unit_loops=True)
    sch.reverse_compute_inline(out)
    unroll_tile(sch, [ki, ii, b, v])
    unroll_tile(sch, sch.get_loops(write)[-3:])
    sch.decompose_reduction(sums, ko)
    unroll_tile(sch, sch.get_loops(sch.get_sblock("sums_init"))[-3:])
    return sch.mod["main"]


def _prefetch_weights(func: tirx.PrimFunc, k: Values) -> tirx.PrimFunc:
    """Prefetch the weights of the inputs that are `prefetch` inputs ahead."""
    weight = func.params[1]
    lanes = int(weight.ty.shape[-1])
    vectors_per_line = max(1, CACHE_LINE_FLOATS // lanes)

    def fetching(loop: Any, index: Any) -> Any:
        _, o, _, _, at = index
        fetches = [
            prefetch(weight, [o, at + k["prefetch"] + i, b, 0])
            for i in range(k["ki"])
            for b in range(0, k["nb"], vectors_per_line)
        ]
        return tirx.SeqStmt([*fetches, loop.body])

    return wrap_marked_loop(func, "sums_update", fetching)
