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
from templates.cpu.halves import MOST_TERMS, parts_of, summed_in_parts
from templates.cpu.isa import HALF, VectorUnit, computes_in, threads_of, vector_unit
from templates.cpu.product_tiles import Product
from templates.cpu.stages import EVEN, spread, waiting, widen_parts
from templates.rewrite import CACHE_LINE_BYTES, mark, prefetch, wrap_marked_loop
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
    or of rows ("rows"). `prefetch` says how many inputs ahead weights are fetched (0: none are). In half precision
    `sums` says of how many inputs the products are summed before the sums are widened to float32 (0: of all).
    """

    name = "cpu.dense"
    op = "dense"
    dtypes: tuple[str, ...] = ("float32", HALF)
    sums_halves = True

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        return Layouts(PLAIN, PLAIN)

    def space(self, workload: Workload, target: Target) -> Space | None:
        if not computes_in(target, workload.dtype):
            return None
        unit, dense = vector_unit(target, workload.dtype), dense_of(workload)
        sums = parts_of(dense.in_features, MOST_TERMS) if workload.dtype == HALF else (0,)
        vectors = -(-dense.out_features // unit.lanes)
        knobs = (
            Knob("nb", tuple(n for n in (1, 2, 3, 4, 6, 8) if n <= vectors)),
            Knob("rows", tile_sizes(dense.rows, 14)),
            Knob("ki", divisors(dense.in_features, 16)),
            Knob("split", ("channels", "rows") if dense.rows > 1 else ("channels",)),
            Knob("prefetch", tuple(p for p in (0, 16, 32, 64) if p < dense.in_features)),
            *((Knob("sums", sums),) if workload.dtype == HALF else ()),
        )
        constraints = (
            Constraint("the register tile does not fit", lambda v: v["nb"] * v["rows"] <= unit.accumulators),
            Constraint("too many unrolled multiply-adds", lambda v: v["nb"] * v["rows"] * v["ki"] <= MAX_UNROLLED),
            Constraint("the unrolled inputs do not divide a part", lambda v: v.get("sums", 0) % v["ki"] == 0),
        )
        seeds = _seeds(dense, knobs[0].values, unit=unit, threads=threads_of(target), part=sums[0])
        return Space(self.name, knobs, constraints, seeds, lambda v: _features(dense, unit.lanes, v))

    def weight_key(self, workload: Workload, target: Target, config: Config) -> str:
        return f"nb={config['nb']}"

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        lanes, nb = vector_unit(target, workload.dtype).lanes, config["nb"]
        out_features, in_features = weight.shape
        tiles = -(-out_features // (nb * lanes))
        padded = np.pad(weight, ((0, tiles * nb * lanes - out_features), (0, 0)))
        return np.ascontiguousarray(padded.reshape(tiles, nb, lanes, in_features).transpose(0, 3, 1, 2))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        dense = dense_of(workload)
        func = _compute(dense, vector_unit(target, workload.dtype).lanes, workload, config.knobs)
        func = _schedule(func, config.knobs)
        return _prefetch_weights(func, config.knobs) if config["prefetch"] else func

    def spread(self, workload: Workload, target: Target, config: Config) -> Config:
        dense, lanes = dense_of(workload), vector_unit(target, workload.dtype).lanes

        def chunks(v: Values) -> int:
            return -(-dense.rows // v["rows"]) if v["split"] == "rows" else -(-dense.out_features // (lanes * v["nb"]))

        splits = ("channels", "rows") if dense.rows > 1 else ()
        return spread(config, [{"split": split} for split in splits], chunks, threads_of(target))


def _seeds(dense: Dense, widths: Sequence[int], *, unit: VectorUnit, threads: int, part: int) -> tuple[Values, ...]:
    """Return the best tiles. Weights that few rows share come from memory, and are fetched ahead. Where many rows share
    them they lie in a cache, and a third of the time would be spent on fetching. Threads share out the channels, or the
    rows where they would wait less. `part` is the number of inputs whose products are summed at once (0: all)."""
    vectors = -(-dense.out_features // unit.lanes)
    tiles = Product(dense.rows, vectors, dense.in_features, unit.lanes, unit.seeded).tiles(
        tile_sizes(dense.rows, 14), widths
    )
    ki = max(divisors(part or dense.in_features, 4))
    ahead = 32 if dense.in_features > 32 else 0
    fetched = (ahead, 0) if dense.rows <= _FEW_ROWS else (0, ahead)

    def split(rows: int, nb: int) -> str:
        channels = waiting(-(-vectors // nb), threads)
        return "channels" if channels <= max(EVEN, waiting(-(-dense.rows // rows), threads)) else "rows"

    return tuple(
        {"nb": nb, "rows": rows, "ki": ki, "prefetch": p, "split": split(rows, nb), **({"sums": part} if part else {})}
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


def _compute(dense: Dense, lanes: int, workload: Workload, knobs: Values) -> tirx.PrimFunc:
    epilogue, dtype, nb, tile_rows = workload.epilogue, workload.dtype, knobs["nb"], knobs["rows"]
    wide = nb * lanes
    tiles = -(-dense.out_features // wide)
    padded_rows = -(-dense.rows // tile_rows) * tile_rows
    data = te.placeholder((dense.rows, dense.in_features), name="data", dtype=dtype)
    weight = te.placeholder((tiles, dense.in_features, nb, lanes), name="weight", dtype=dtype)
    extra = epilogue_operands(epilogue, dense.out_shape, dtype)
    last = dense.rows - 1

    def row(i: tirx.PrimExpr) -> tirx.PrimExpr:
        return i if padded_rows == dense.rows else tirx.min(i, last)  # rows beyond the end repeat the last row

    sums = summed_in_parts(
        (padded_rows, tiles, nb, lanes),
        dense.in_features,
        lambda k, i, o, b, v: data[row(i), k] * weight[o, k, b, v],
        part=knobs.get("sums", 0),
    )

    def result(i: Any, j: Any) -> Any:
        value = sums[i, j // wide, j % wide // lanes, j % lanes]
        return epilogue_value(epilogue, value, extra, index=(i, j), dtype=dtype)

    out = te.compute(dense.out_shape, result, name="out")
    return te.create_prim_func([data, weight, *extra, out])


def _schedule(func: tirx.PrimFunc, k: Values) -> tirx.PrimFunc:
    sch = new_schedule(func)
    sums, out = sch.get_sblock("sums"), sch.get_sblock("out")
    i, o, b, v, step = sch.get_loops(sums)
    io, ii = sch.split(i, [None, k["rows"]])
    outer = (o, io) if k["split"] == "channels" else (io, o)
    sch.reorder(*outer, step, ii, b, v)
    sch.parallel(outer[0])
    write = sch.cache_write(sums, 0, "local")
    sch.reverse_compute_at(write, outer[1], preserve_unit_loops=True)
    sch.reverse_compute_inline(out)
    unroll_tile(sch, sch.get_loops(write)[-3:])
    tile, terms = [ii, b, v], step
    if k.get("sums", 0):
        sums = widen_parts(sch, sums, step, tile=3)
        *tile, terms = sch.get_loops(sums)[-5:]
    ko, ki = sch.split(terms, [None, k["ki"]])
    sch.reorder(ko, ki, *tile)
    mark(sch, ko)
    unroll_tile(sch, [ki, *tile])
    init = sch.decompose_reduction(sums, ko)
    unroll_tile(sch, sch.get_loops(init)[-3:])
    return sch.mod["main"]


def _prefetch_weights(func: tirx.PrimFunc, k: Values) -> tirx.PrimFunc:
    """Prefetch the weights of the inputs that are `prefetch` inputs ahead."""
    weight = func.params[1]
    lanes, value_bytes = int(weight.ty.shape[-1]), 2 if str(weight.ty.dtype) == HALF else 4
    vectors_per_line = max(1, CACHE_LINE_BYTES // (value_bytes * lanes))
    part = k.get("sums", 0)

    def fetching(loop: Any, index: Any) -> Any:
        *step, _, o, _, _, at = index
        at = at + (step[0] * part if step else 0)
        fetches = [
            prefetch(weight, [o, at + k["prefetch"] + i, b, 0])
            for i in range(k["ki"])
            for b in range(0, k["nb"], vectors_per_line)
        ]
        return tirx.SeqStmt([*fetches, loop.body])

    return wrap_marked_loop(func, "part_update" if part else "sums_update", fetching)
