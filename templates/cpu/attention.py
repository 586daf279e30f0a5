"""The template computes attention on a CPU, for a tile of queries at a time.

Everything between the scores of a tile and its result stays in a cache: the scores, their largest value, the powers,
their sum and the products with the values. It is the tiling of Dao et al., "FlashAttention" (2022), section 3.1, but a
CPU's cache holds whole rows of scores, so that there is no running maximum. Keys are packed as (tiles, depth, nb,
lanes) and values as (columns, vectors, lanes), once for each part of a head's rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.attention import Attention
from templates.attention_stages import Given, masked
from templates.blocking import divisors, tile_sizes
from templates.cpu.isa import threads_of, vector_unit
from templates.cpu.product_tiles import Product, tile_widths
from templates.cpu.stages import spread
from templates.space import Constraint, Knob, Space, Values, valid_seeds
from templates.stages import new_schedule, stored_as, unroll_tile
from templates.template import Template
from tuning_db.record import Config, Workload

_MAX_UNROLLED = 350
_MAX_SCORES = 1 << 17  # of a tile of rows, 512 KB
_SEEDED_ROWS, _SEEDED_UNROLLED = 10, 200
_PARTS = (1, 2, 3, 4, 6, 8)
_CHUNKS = 4  # for each thread, so that one which is late holds up little
_TERMS = (1, 2, 4, 8)
ROW_STAGES = ("total", "lane_sums", "powers", "largest", "lane_maxima", "scores", "sums", "queries")


class TiledAttention(Template):
    """A template whose tiles have `rows` queries, of which `score_rows` by `nb` vectors of keys are a register tile of
    the scores, and `value_rows` by `vb` vectors of a value one of the result.

    Its other knobs: `ki` terms of the scores and `kj` of the result are unrolled. The queries of a head are cut into
    `parts`, which run in parallel, as do the heads.
    """

    name = "cpu.attention"
    op = "attention"

    def space(self, workload: Workload, target: Target) -> Space | None:
        if target.kind.name != "llvm":
            return None
        problem = TiledProblem(Attention.of(workload), vector_unit(target).lanes)
        unit = vector_unit(target)
        knobs = tile_knobs(problem)
        constraints = tile_constraints(problem, unit.accumulators)
        seeds = tile_seeds(problem, {knob.name: knob.values for knob in knobs}, unit.seeded, threads_of(target))
        valid = valid_seeds(seeds, knobs, constraints)
        return Space(self.name, knobs, constraints, valid, lambda v: tile_features(problem, v))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        problem = TiledProblem(Attention.of(workload), vector_unit(target).lanes)
        adjacent = problem.view.operands["key"][0].token == 1
        return _schedule(tiled_compute(problem, config.knobs), config.knobs, keys_in_vectors=adjacent)

    def spread(self, workload: Workload, target: Target, config: Config) -> Config:
        view = Attention.of(workload)
        more = [{"parts": p} for p in _PARTS if p * config["rows"] <= view.rows]
        return spread(config, more, lambda v: view.batch * view.heads * v["parts"], threads_of(target))


@dataclass(frozen=True)
class TiledProblem:
    """Holds a workload, and the lanes of the vectors that its keys and values are packed in."""

    view: Attention
    lanes: int

    @property
    def key_vectors(self) -> int:
        return -(-self.view.columns // self.lanes)

    @property
    def value_vectors(self) -> int:
        return -(-self.view.width // self.lanes)

    def padded_rows(self, v: Values) -> int:
        whole = v["rows"] * v["parts"]
        return -(-self.view.rows // whole) * whole

    def padded_columns(self, v: Values) -> int:
        wide = v["nb"] * self.lanes
        return -(-self.view.columns // wide) * wide


def tile_knobs(problem: TiledProblem) -> tuple[Knob, ...]:
    """Return the knobs of a tile."""
    view = problem.view
    return (
        Knob("rows", tile_sizes(view.rows, 24)),
        Knob("nb", tile_widths(problem.key_vectors)),
        Knob("score_rows", tuple(range(1, min(view.rows, 14) + 1))),
        Knob("value_rows", tuple(range(1, min(view.rows, 14) + 1))),
        Knob("vb", divisors(problem.value_vectors, 8)),
        Knob("ki", tuple(k for k in _TERMS if view.depth % k == 0)),
        Knob("kj", tuple(k for k in _TERMS if k <= view.columns)),
        Knob("parts", tuple(p for p in _PARTS if p <= view.rows)),
    )


def tile_constraints(problem: TiledProblem, accumulators: int) -> tuple[Constraint, ...]:
    """Return what makes a tile valid for a processor that sums up in this many vectors."""

    def unrolled(v: Values) -> int:
        return max(v["nb"] * v["score_rows"] * v["ki"], v["vb"] * v["value_rows"] * v["kj"])

    return (
        Constraint("the register tile of scores does not fit", lambda v: v["nb"] * v["score_rows"] <= accumulators),
        Constraint("the register tile of values does not fit", lambda v: v["vb"] * v["value_rows"] <= accumulators),
        Constraint(
            "register tiles do not divide the tile",
            lambda v: v["rows"] % v["score_rows"] == 0 and v["rows"] % v["value_rows"] == 0,
        ),
        Constraint("too many unrolled multiply-adds", lambda v: unrolled(v) <= _MAX_UNROLLED),
        Constraint("the scores do not fit", lambda v: v["rows"] * problem.padded_columns(v) <= _MAX_SCORES),
        Constraint("a part has no rows", lambda v: v["parts"] == 1 or v["parts"] * v["rows"] <= problem.view.rows),
    )


def tile_seeds(problem: TiledProblem, values: Mapping[str, Any], accumulators: int, threads: int) -> Iterator[Values]:
    """Yield the tiles whose two products take the least time together, with as few parts as give all threads the same
    work, and with more. The last is the smallest tile."""
    view = problem.view
    scores = Product(view.rows, problem.key_vectors, view.depth, problem.lanes, accumulators)
    products = Product(view.rows, problem.value_vectors, view.columns, problem.lanes, accumulators)

    def cost(tile: tuple[int, ...]) -> float:
        _, height, nb, value_rows, vb = tile
        return scores.cost((height, nb)) + products.cost((value_rows, vb))

    tiles = [
        (rows, height, nb, value_rows, vb)
        for rows in values["rows"]
        if rows <= _SEEDED_ROWS
        for height in divisors(rows, rows)
        for value_rows in divisors(rows, rows)
        for nb in values["nb"]
        for vb in values["vb"]
        if height * nb <= accumulators and value_rows * vb <= accumulators
    ]
    chunks = {p: view.batch * view.heads * p for p in values["parts"]}
    even = next((p for p, n in chunks.items() if n % threads == 0 or n >= _CHUNKS * threads), 1)
    more = next((p for p, n in chunks.items() if n >= _CHUNKS * threads), even)
    for rows, height, nb, value_rows, vb in sorted(tiles, key=lambda tile: (cost(tile), tile)):
        for p in dict.fromkeys((even, more)):
            tile = {"rows": rows, "score_rows": height, "nb": nb, "value_rows": value_rows, "vb": vb}
            ki = max(k for k in values["ki"] if height * nb * k <= _SEEDED_UNROLLED)
            kj = max(k for k in values["kj"] if value_rows * vb * k <= _SEEDED_UNROLLED)
            yield {**tile, "ki": ki, "kj": kj, "parts": p}
    yield {name: min(held) for name, held in values.items()}


def tile_features(problem: TiledProblem, v: Values) -> Mapping[str, float]:
    """Return what a cost model knows of a tile."""
    view = problem.view
    scores, products = v["nb"] * v["score_rows"], v["vb"] * v["value_rows"]
    return {
        "accumulators": float(scores),
        "loads_per_fma": (v["nb"] + v["score_rows"]) / scores,
        "value_loads_per_fma": (v["vb"] + v["value_rows"]) / products,
        "body_fmas": float(scores * v["ki"]),
        "chunks": float(view.batch * view.heads * v["parts"]),
        "padded": problem.padded_rows(v) * problem.padded_columns(v) / (view.rows * view.columns),
        "scores": float(v["rows"] * problem.padded_columns(v)),
    }


def tiled_compute(problem: TiledProblem, v: Values, dtype: str = "float32") -> tirx.PrimFunc:
    """Return the function, whose stages are named as in the schedule, without a schedule. Operands and the result are
    stored as `dtype`."""
    view, given = problem.view, Given.of(problem.view, dtype)
    powers, total = _softmax(problem, given, v)
    lanes, wide, width = problem.lanes, v["vb"] * problem.lanes, v["nb"] * problem.lanes
    vectors = problem.value_vectors // v["vb"], v["vb"], lanes
    heads, rows, terms = view.batch * view.heads, problem.padded_rows(v), -(-view.columns // v["kj"]) * v["kj"]

    def value(g: Any, j: Any, o: Any, b: Any, x: Any) -> Any:
        return given.value(g, j, o * wide + b * lanes + x, padded=(terms, problem.value_vectors * lanes))

    values = te.compute((heads, terms, *vectors), value, name="values")
    j = te.reduce_axis((0, terms), "j")

    def product(g: Any, i: Any, *at: Any) -> Any:
        power = powers[g, i, j // width, j % width // lanes, j % lanes]
        return te.sum(power * values[(g, j, *at)], axis=j)

    products = te.compute((heads, rows, *vectors), product, name="products")
    attended = te.compute(
        (heads, rows, *vectors), lambda g, i, *at: products[(g, i, *at)] / total[g, i], name="attended"
    )

    def result(*index: Any) -> Any:
        head, row, element = given.result_at(index)
        return stored_as(attended[head, row, element // wide, element % wide // lanes, element % lanes], dtype)

    out = te.compute(view.result_shape, result, name="out")
    return te.create_prim_func([*given.tensors.values(), out])


def _softmax(problem: TiledProblem, given: Given, v: Values) -> tuple[te.Tensor, te.Tensor]:
    """Return the powers of the scores (heads, rows, tiles, nb, lanes), which are 0 beyond the last key, and their sums
    (heads, rows)."""
    scores = _scores(problem, given, v)
    heads, rows, *tiles = (int(extent) for extent in scores.shape)
    lanes = problem.lanes
    tile, vector, lane = (te.reduce_axis((0, extent)) for extent in tiles)
    lane_maxima = te.compute(
        (heads, rows, lanes), lambda g, i, x: te.max(scores[g, i, tile, vector, x], axis=[tile, vector]), "lane_maxima"
    )
    largest = te.compute((heads, rows), lambda g, i: te.max(lane_maxima[g, i, lane], axis=lane), name="largest")
    powers = te.compute(
        (heads, rows, *tiles), lambda g, i, *at: tirx.exp(scores[(g, i, *at)] - largest[g, i]), name="powers"
    )
    tile, vector, lane = (te.reduce_axis((0, extent)) for extent in tiles)
    lane_sums = te.compute(
        (heads, rows, lanes), lambda g, i, x: te.sum(powers[g, i, tile, vector, x], axis=[tile, vector]), "lane_sums"
    )
    total = te.compute((heads, rows), lambda g, i: te.sum(lane_sums[g, i, lane], axis=lane), name="total")
    return powers, total


def _scores(problem: TiledProblem, given: Given, v: Values) -> te.Tensor:
    """Return the scores (heads, rows, tiles, nb, lanes), which are -inf beyond the last key."""
    view, lanes, nb = problem.view, problem.lanes, v["nb"]
    heads, rows, wide = view.batch * view.heads, problem.padded_rows(v), v["nb"] * problem.lanes
    shape = heads, rows, problem.padded_columns(v) // wide, nb, lanes

    def row(i: tirx.PrimExpr) -> tirx.PrimExpr:
        return i if rows == view.rows else tirx.min(i, view.rows - 1)  # rows beyond the end repeat it

    def column(o: Any, b: Any, x: Any) -> Any:
        return o * wide + b * lanes + x

    queries = te.compute((heads, rows, view.depth), lambda g, i, d: given.read("query", g, row(i), d), name="queries")
    keys = te.compute(
        (heads, shape[2], view.depth, nb, lanes),
        lambda g, o, d, b, x: given.key(g, column(o, b, x), d, padded=problem.padded_columns(v)),
        name="keys",
    )
    d = te.reduce_axis((0, view.depth), "d")
    sums = te.compute(shape, lambda g, i, o, b, x: te.sum(queries[g, i, d] * keys[g, o, d, b, x], axis=d), name="sums")

    return te.compute(
        shape,
        lambda g, i, o, b, x: masked(
            given, sums[g, i, o, b, x], (g, row(i), column(o, b, x)), padded=problem.padded_columns(v)
        ),
        name="scores",
    )


def _schedule(func: tirx.PrimFunc, v: Values, *, keys_in_vectors: bool) -> tirx.PrimFunc:
    """Schedule the loops as: heads and parts | tiles of rows | register tiles."""
    sch = new_schedule(func)
    chunk = tile_rows(sch, v)
    sch.parallel(chunk)
    for name in ("keys", "values"):
        sch.compute_at(sch.get_sblock(name), chunk, preserve_unit_loops=True)
    depth, vector, lane = sch.get_loops(sch.get_sblock("keys"))[-3:]
    sch.reorder(vector, depth, lane)  # reads few keys at a time
    if keys_in_vectors:
        sch.vectorize(lane)
    sch.vectorize(sch.get_loops(sch.get_sblock("values"))[-1])
    schedule_tile(sch, v)
    return sch.mod["main"]


def tile_rows(sch: Schedule, v: Values) -> Any:
    """Compute all stages but the packing of keys and values in the loop over tiles of rows. Return the loop over heads
    and parts."""
    attended = sch.get_sblock("attended")
    g, i, outer, inner, x = sch.get_loops(attended)
    part, tile, upper, row = sch.split(i, [v["parts"], None, v["rows"] // v["value_rows"], v["value_rows"]])
    sch.reorder(upper, outer, row, inner, x)
    chunk = sch.fuse(g, part)
    sch.reverse_compute_inline(sch.get_sblock("out"))
    sch.compute_at(sch.get_sblock("products"), outer, preserve_unit_loops=True)
    for name in ROW_STAGES:
        sch.compute_at(sch.get_sblock(name), tile, preserve_unit_loops=True)
    return chunk


def schedule_tile(sch: Schedule, v: Values) -> None:
    """Schedule the stages of a tile of rows, which stand in its loop already."""
    unroll_tile(sch, sch.get_loops(sch.get_sblock("attended"))[-3:])
    _schedule_scores(sch, v)
    for name in ("lane_maxima", "lane_sums"):
        _by_lanes(sch, name)
    sch.vectorize(sch.get_loops(sch.get_sblock("powers"))[-1])
    _schedule_products(sch, v)


def _schedule_scores(sch: Schedule, v: Values) -> None:
    sums, scores = sch.get_sblock("sums"), sch.get_sblock("scores")
    *_, i, o, b, x, d = sch.get_loops(sums)
    io, ii = sch.split(i, [None, v["score_rows"]])
    do, di = sch.split(d, [None, v["ki"]])
    sch.reorder(o, io, do, di, ii, b, x)
    sch.reverse_compute_at(scores, io, preserve_unit_loops=True)
    sch.set_scope(sums, 0, "local")
    unroll_tile(sch, [di, ii, b, x])
    unroll_tile(sch, sch.get_loops(scores)[-4:])
    sch.decompose_reduction(sums, do)
    unroll_tile(sch, sch.get_loops(sch.get_sblock("sums_init"))[-3:])


def _by_lanes(sch: Schedule, name: str) -> None:
    """Reduce a row of vectors to a vector."""
    block = sch.get_sblock(name)
    lane, tile, vector = sch.get_loops(block)[-3:]
    sch.reorder(tile, vector, lane)
    sch.vectorize(lane)
    sch.decompose_reduction(block, tile)
    sch.vectorize(sch.get_loops(sch.get_sblock(f"{name}_init"))[-1])


def _schedule_products(sch: Schedule, v: Values) -> None:
    products = sch.get_sblock("products")
    *_, ii, outer, inner, x, j = sch.get_loops(products)
    jo, ji = sch.split(j, [None, v["kj"]])
    sch.reorder(jo, ji, ii, outer, inner, x)
    sch.set_scope(products, 0, "local")
    unroll_tile(sch, [ji, ii, outer, inner, x])
    sch.decompose_reduction(products, jo)
    unroll_tile(sch, sch.get_loops(sch.get_sblock("products_init"))[-4:])
