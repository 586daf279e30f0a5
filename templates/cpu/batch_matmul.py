"""The template that multiplies pairs of computed matrices on a CPU, with the register tile of the dense layer's.

Columns of the second matrix are packed inside the kernel, as many as a register tile is wide: (depth, nb, v). The tile
of columns, which lies in a cache then, is multiplied with all rows of its part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.batch_matmul import BatchMatmul
from templates.blocking import divisors, tile_sizes
from templates.cpu.halves import MOST_TERMS, parts_of, summed_in_parts
from templates.cpu.isa import HALF, VectorUnit, computes_in, threads_of, vector_unit
from templates.cpu.product_tiles import Product, tile_widths
from templates.cpu.stages import even_first, spread, widen_parts
from templates.space import Constraint, Knob, Space, Values
from templates.stages import new_schedule, stored_as, unroll_tile, zero
from templates.template import Template
from tuning_db.record import Config, Workload

MAX_UNROLLED = 350
_MAX_PARTS = 8
_PARTS = (1, 2, 3, 4, 6, _MAX_PARTS)


class PackedBatchMatmul(Template):
    """A template whose register tile has `rows` rows and `nb` vectors of columns.

    Its other knobs: `ki` terms are unrolled. The rows are cut into `parts`, which run in parallel, as do the matrices
    and the tiles of columns. Each part packs the columns for itself. In half precision `sums` says how many terms are
    summed before the sums are widened to float32 (0: all).
    """

    name = "cpu.batch_matmul"
    op = "batch_matmul"
    dtypes: tuple[str, ...] = ("float32", HALF)
    sums_halves = True

    def space(self, workload: Workload, target: Target) -> Space | None:
        if not computes_in(target, workload.dtype):
            return None
        unit, product = vector_unit(target, workload.dtype), BatchMatmul.of(workload)
        vectors = -(-product.columns // unit.lanes)
        sums = parts_of(product.depth, MOST_TERMS) if workload.dtype == HALF else (0,)
        knobs = (
            Knob("nb", tile_widths(vectors)),
            Knob("rows", tile_sizes(product.rows, 14)),
            Knob("ki", divisors(product.depth, 16)),
            Knob("parts", tuple(p for p in _PARTS if p <= product.rows)),
            *((Knob("sums", sums),) if workload.dtype == HALF else ()),
        )
        constraints = (
            Constraint("the register tile does not fit", lambda v: v["nb"] * v["rows"] <= unit.accumulators),
            Constraint("too many unrolled multiply-adds", lambda v: v["nb"] * v["rows"] * v["ki"] <= MAX_UNROLLED),
            Constraint("a part has no rows", lambda v: v["parts"] == 1 or v["parts"] * v["rows"] <= product.rows),
            Constraint("the unrolled terms do not divide a sum", lambda v: v.get("sums", 0) % v["ki"] == 0),
        )
        seeds = even_first(
            _seeds(product, knobs[0].values, vectors, unit, sums[0]),
            lambda v: _chunks(product, unit.lanes, v),
            threads_of(target),
        )
        return Space(self.name, knobs, constraints, seeds, lambda v: _features(product, unit.lanes, v))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        lanes = vector_unit(target, workload.dtype).lanes
        func = _compute(BatchMatmul.of(workload), lanes, config.knobs, workload.dtype)
        return _schedule(func, config.knobs, transposed=BatchMatmul.of(workload).transposed)

    def spread(self, workload: Workload, target: Target, config: Config) -> Config:
        product, lanes = BatchMatmul.of(workload), vector_unit(target, workload.dtype).lanes
        more = [{"parts": p} for p in _PARTS if p * config["rows"] <= product.rows]
        return spread(config, more, lambda v: _chunks(product, lanes, v), threads_of(target))


def _chunks(product: BatchMatmul, lanes: int, v: Values) -> int:
    return product.batch * -(-product.columns // (lanes * v["nb"])) * v["parts"]


def _seeds(
    product: BatchMatmul, widths: Sequence[int], vectors: int, unit: VectorUnit, terms: int
) -> tuple[Values, ...]:
    """Return the best tiles, with few parts and with more. `terms` are summed before sums are widened (0: all)."""
    tiles = Product(product.rows, vectors, product.depth, unit.lanes, unit.seeded).tiles(
        tile_sizes(product.rows, 14), widths
    )
    ki = max(divisors(terms or product.depth, 4))
    found = []
    for rows, nb in tiles[:3]:
        chunks = product.batch * -(-vectors // nb)
        for parts in (1, 2, 4):
            if parts == 1 or (parts * rows <= product.rows and parts * chunks <= 4 * _MAX_PARTS):
                found.append({"nb": nb, "rows": rows, "ki": ki, "parts": parts, **({"sums": terms} if terms else {})})
    return tuple(found)


def _features(product: BatchMatmul, lanes: int, v: Values) -> Mapping[str, float]:
    tile = v["nb"] * v["rows"]
    return {
        "accumulators": float(tile),
        "loads_per_fma": (v["nb"] + v["rows"]) / tile,
        "body_fmas": float(tile * v["ki"]),
        "chunks": float(_chunks(product, lanes, v)),
        "packed_share": v["parts"] / product.rows,
    }


def _compute(product: BatchMatmul, lanes: int, k: Values, dtype: str) -> tirx.PrimFunc:
    wide = k["nb"] * lanes
    tiles, whole = -(-product.columns // wide), k["rows"] * k["parts"]
    padded_rows = -(-product.rows // whole) * whole
    first = te.placeholder((product.batch, product.rows, product.depth), name="first", dtype=dtype)
    second = te.placeholder(product.second_shape, name="second", dtype=dtype)

    def row(i: tirx.PrimExpr) -> tirx.PrimExpr:
        return i if padded_rows == product.rows else tirx.min(i, product.rows - 1)  # rows beyond the end repeat it

    def column(g: tirx.PrimExpr, t: tirx.PrimExpr, j: tirx.PrimExpr) -> tirx.PrimExpr:
        value = second[g, j, t] if product.transposed else second[g, t, j]
        return value if product.columns % wide == 0 else tirx.if_then_else(j < product.columns, value, zero(dtype))

    packed = te.compute(
        (product.batch, tiles, product.depth, k["nb"], lanes),
        lambda g, o, t, b, v: column(g, t, o * wide + b * lanes + v),
        name="packed",
    )
    sums = summed_in_parts(
        (product.batch, padded_rows, tiles, k["nb"], lanes),
        product.depth,
        lambda t, g, i, o, b, v: first[g, row(i), t] * packed[g, o, t, b, v],
        part=k.get("sums", 0),
    )
    out = te.compute(
        (product.batch, product.rows, product.columns),
        lambda g, i, j: stored_as(sums[g, i, j // wide, j % wide // lanes, j % lanes], dtype),
        name="out",
    )
    return te.create_prim_func([first, second, out])


def schedule_chunks(sch: Schedule, k: Values) -> Any:
    """Schedule the stages "sums" and "out" as: matrices, tiles of columns and parts of rows in parallel | rows | terms
    | register tile, whose sums are written once. Return the parallel loop, into which "packed" is to be moved."""
    sums = sch.get_sblock("sums")
    g, i, o, b, v, *terms = sch.get_loops(sums)
    part, io, ii = sch.split(i, [k["parts"], None, k["rows"]])
    sch.reorder(g, o, part, io, *terms, ii, b, v)
    chunk = sch.fuse(g, o, part)
    sch.parallel(chunk)
    write = sch.cache_write(sums, 0, "local")
    sch.reverse_compute_at(write, io, preserve_unit_loops=True)
    sch.reverse_compute_inline(sch.get_sblock("out"))
    unroll_tile(sch, sch.get_loops(write)[-3:])
    return chunk


def _schedule(func: tirx.PrimFunc, k: Values, transposed: bool) -> tirx.PrimFunc:
    sch = new_schedule(func)
    chunk = schedule_chunks(sch, k)
    packed, sums = sch.get_sblock("packed"), sch.get_sblock("sums")
    terms, *tile = sch.get_loops(sums)[-4:]
    if k.get("sums", 0):
        sums = widen_parts(sch, sums, terms, tile=3)
        *tile, terms = sch.get_loops(sums)[-5:]
    sch.compute_at(packed, chunk, preserve_unit_loops=True)
    if not transposed:
        sch.vectorize(sch.get_loops(packed)[-1])
    ko, ki = sch.split(terms, [None, k["ki"]])
    sch.reorder(ko, ki, *tile)
    unroll_tile(sch, [ki, *tile])
    unroll_tile(sch, sch.get_loops(sch.decompose_reduction(sums, ko))[-3:])
    return sch.mod["main"]
