"""The template computes attention on OpenCL and CUDA devices, in six kernels. Start at `GpuAttention`.

They pack the keys, compute the scores, the largest score of each row, the powers, their sums and the result. The scores
stay in the device's memory: local memory would hold rows of some hundred keys only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.attention import Attention
from templates.attention_stages import Given, masked
from templates.blocking import tile_sizes
from templates.gpu.limits import GpuLimits, gpu_limits, gpu_limits_of
from templates.gpu.stages import (
    Group,
    launch,
    launch_features,
    limit_constraints,
    own_kernel,
    split_init,
    vector_widths,
    write_back,
)
from templates.space import Constraint, Knob, Space, Values, at_most, valid_seeds
from templates.stages import new_schedule, stored_as, unroll_tile
from templates.template import Template
from tuning_db.record import Config, Workload

_ITEMS = 64  # of a group of the kernels that have no tile
_COUNTS = (1, 2, 4, 8, 16, 32, 64)
_MAX_WASTE = 1.5  # rows and columns of scores that are computed, over those that there are
_SEEDS: dict[str, tuple[Values, ...]] = {
    "cpu": (
        {"vec": 16, "nb": 4, "ki": 4, "wv": 16},
        {"vec": 8, "nb": 4, "ki": 4, "wv": 8},
        {"vec": 16, "ki": 4, "wv": 16},
        {"vec": 4, "ki": 4, "wv": 8},
    ),
    "other": (
        {"vec": 4, "ot": 16, "rt": 4, "ki": 4, "wv": 4, "wt": 16},
        {"vec": 2, "ot": 16, "rt": 8, "ki": 4, "wv": 2, "wt": 16},
        {"vec": 1, "ot": 32, "wt": 32},
    ),
}


class GpuAttention(Template):
    """A template whose register tile of scores has `ri` rows by `nb` vectors of `vec` keys, and whose register tile of
    the result has `ri` rows by a vector of `wv` elements.

    Its other knobs: a group has `rt` by `ot` tiles of scores, and `rt` by `wt` of the result. `ki` terms of the scores
    are unrolled.
    """

    name = "gpu.attention"
    version = 3
    op = "attention"
    dtypes = ("float32", "float16")

    def space(self, workload: Workload, target: Target) -> Space | None:
        limits, view = gpu_limits(target), Attention.of(workload)
        if limits is None or not limits.stores(workload.dtype):
            return None
        knobs, constraints = _knobs(view, limits), _constraints(view, limits)
        seeds = [at_most({**seed, "ri": 4}, knobs) for seed in _SEEDS.get(limits.family, _SEEDS["other"])]
        valid = valid_seeds([*seeds, {}], knobs, constraints)
        return Space(self.name, knobs, constraints, valid, lambda v: _features(view, limits, v))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        view, on_cpu = Attention.of(workload), gpu_limits_of(target).family == "cpu"
        result_width = config["wv"] if on_cpu and view.order.endswith("a") else 1
        return _schedule(_compute(_Problem(view, config.knobs), workload.dtype), config.knobs, result_width)


def _knobs(view: Attention, limits: GpuLimits) -> tuple[Knob, ...]:
    widths = vector_widths(limits, limits.lanes)
    return (
        Knob("ri", tile_sizes(view.rows, 8)),
        Knob("rt", tuple(n for n in _COUNTS[:5] if n <= view.rows)),
        Knob("nb", tuple(n for n in (1, 2, 3, 4, 6, 8) if n <= view.columns)),
        Knob("vec", tuple(w for w in reversed(widths) if w <= view.columns)),
        Knob("ot", tuple(n for n in _COUNTS if n <= view.columns)),
        Knob("ki", tuple(n for n in _COUNTS[:4] if view.depth % n == 0)),
        Knob("wv", tuple(w for w in reversed(widths) if view.width % w == 0)),
        Knob("wt", tuple(n for n in _COUNTS if n <= view.width)),
    )


def _constraints(view: Attention, limits: GpuLimits) -> tuple[Constraint, ...]:
    def waste(v: Values) -> float:
        problem = _Problem(view, v)
        return problem.rows * problem.columns / (view.rows * view.columns)

    return (
        *limit_constraints(limits, _scoring, lambda v: v["ri"] * v["nb"] * v["vec"]),
        *limit_constraints(limits, _attending, lambda v: v["ri"] * v["wv"]),
        Constraint("too many unrolled multiply-adds", lambda v: v["ri"] * v["nb"] * v["ki"] <= limits.max_unrolled),
        Constraint("a group has no elements", lambda v: v["wt"] * v["wv"] <= view.width),
        Constraint(
            "too much is computed in vain", lambda v: waste(v) <= _MAX_WASTE or v["nb"] * v["ot"] * v["vec"] == 1
        ),
    )


def _scoring(v: Values) -> Group:
    return Group(v["rt"], 1, v["ot"])


def _attending(v: Values) -> Group:
    return Group(v["rt"], 1, v["wt"])


@dataclass(frozen=True)
class _Problem:
    """A workload with the sizes that its knobs make of it."""

    view: Attention
    v: Values

    @property
    def heads(self) -> int:
        return self.view.batch * self.view.heads

    @property
    def rows(self) -> int:
        tile = self.v["rt"] * self.v["ri"]
        return -(-self.view.rows // tile) * tile

    @property
    def wide(self) -> int:
        return self.v["nb"] * self.v["ot"] * self.v["vec"]

    @property
    def columns(self) -> int:
        return -(-self.view.columns // self.wide) * self.wide

    def row(self, i: Any) -> Any:
        """Return a row that there is: rows beyond the end repeat the last one."""
        return i if self.rows == self.view.rows else tirx.min(i, self.view.rows - 1)

    def tile(self, j: Any) -> tuple[Any, Any, Any, Any]:
        """Return where a column of the scores is: its tile, and its place there."""
        per_vector = self.v["ot"] * self.v["vec"]
        return j // self.wide, j % self.wide // per_vector, j % per_vector // self.v["vec"], j % self.v["vec"]


def _features(view: Attention, limits: GpuLimits, v: Values) -> Mapping[str, float]:
    problem = _Problem(view, v)
    groups = problem.heads * problem.rows // (v["rt"] * v["ri"]) * (problem.columns // problem.wide)
    return {
        **launch_features(limits, _scoring(v), groups, 0),
        "sums": float(v["ri"] * v["nb"] * v["vec"]),
        "loads_per_fma": (v["nb"] + v["ri"]) / (v["nb"] * v["ri"]),
        "body_fmas": float(v["ri"] * v["nb"] * v["ki"]),
        "value_items": float(v["rt"] * v["wt"]),
        "value_sums": float(v["ri"] * v["wv"]),
    }


def _compute(problem: _Problem, dtype: str) -> tirx.PrimFunc:
    view, given = problem.view, Given.of(problem.view, dtype)
    powers, heads, rows = _powers(problem, given), problem.heads, problem.rows
    total = _reduced(problem, powers, te.sum, "total")
    term = te.reduce_axis((0, view.columns), "term")
    products = te.compute(
        (heads, rows, view.width),
        lambda g, i, e: te.sum(powers[g, i, term] * given.read("value", g, term, e), axis=term),
        name="products",
    )

    def result(*index: Any) -> Any:
        head, row, element = given.result_at(index)
        return stored_as(products[head, row, element] / total[head, row], dtype)

    out = te.compute(view.result_shape, result, name="out")
    return te.create_prim_func([*given.tensors.values(), out])


def _powers(problem: _Problem, given: Given) -> te.Tensor:
    """Return the powers (heads, rows, columns), which are 0 beyond the last key."""
    view, v, heads = problem.view, problem.v, problem.heads
    tile = v["nb"], v["ot"], v["vec"]
    shape = heads, problem.rows, problem.columns // problem.wide, *tile

    def column(t: Any, b: Any, o: Any, x: Any) -> Any:
        return t * problem.wide + (b * v["ot"] + o) * v["vec"] + x

    def key(g: Any, t: Any, d: Any, *at: Any) -> Any:
        return given.key(g, column(t, *at), d, padded=problem.columns)

    keys = te.compute((heads, shape[2], view.depth, *tile), key, name="keys")
    d = te.reduce_axis((0, view.depth), "d")

    def term(g: Any, i: Any, t: Any, *at: Any) -> Any:
        return te.sum(given.read("query", g, problem.row(i), d) * keys[(g, t, d, *at)], axis=d)

    sums = te.compute(shape, term, name="sums")
    scores = te.compute(
        (heads, problem.rows, problem.columns),
        lambda g, i, j: masked(given, sums[(g, i, *problem.tile(j))], (g, problem.row(i), j), padded=problem.columns),
        name="scores",
    )
    largest = _reduced(problem, scores, te.max, "largest")
    return te.compute(
        (heads, problem.rows, problem.columns),
        lambda g, i, j: tirx.exp(scores[g, i, j] - largest[g, i]),
        name="powers",
    )


def _reduced(problem: _Problem, values: te.Tensor, reduce: Callable[..., Any], name: str) -> te.Tensor:
    """Reduce the rows of values (heads, rows, columns), of which the lanes of a vector are reduced side by side."""
    lanes = problem.v["vec"]
    j, lane = te.reduce_axis((0, problem.columns // lanes)), te.reduce_axis((0, lanes))
    of_lanes = te.compute(
        (problem.heads, problem.rows, lanes),
        lambda g, i, x: reduce(values[g, i, j * lanes + x], axis=j),
        name=f"{name}_of_lanes",
    )
    return te.compute((problem.heads, problem.rows), lambda g, i: reduce(of_lanes[g, i, lane], axis=lane), name=name)


def _schedule(func: tirx.PrimFunc, v: Values, result_width: int) -> tirx.PrimFunc:
    """Schedule the kernels. An item of the last one writes a vector of `result_width` elements."""
    sch = new_schedule(func)
    own_kernel(sch, sch.get_sblock("keys"), _ITEMS, v["vec"])
    own_kernel(sch, sch.get_sblock("powers"), _ITEMS, v["vec"])
    for name in ("largest", "total"):
        _by_rows(sch, name)
    own_kernel(sch, sch.get_sblock("out"), _ITEMS, result_width)
    _schedule_products(sch, v)
    _schedule_scores(sch, v)
    return sch.mod["main"]


def _by_rows(sch: Schedule, name: str) -> None:
    """Reduce each row in an item."""
    block, of_lanes = sch.get_sblock(name), sch.get_sblock(f"{name}_of_lanes")
    g, i, lane = sch.get_loops(block)
    group, item = sch.split(sch.fuse(g, i), [None, _ITEMS])
    launch(sch, {"blockIdx.x": [group], "threadIdx.x": [item]})
    sch.set_scope(of_lanes, 0, "local")
    sch.compute_at(of_lanes, item, preserve_unit_loops=True)
    x, j = sch.get_loops(of_lanes)[-2:]
    sch.reorder(j, x)
    unroll_tile(sch, [x])
    sch.unroll(lane)
    split_init(sch, of_lanes, j)


def _schedule_scores(sch: Schedule, v: Values) -> None:
    """Schedule the loops as: groups | items | terms | register tile, with scale and mask where scores are written."""
    sums = sch.get_sblock("sums")
    g, i, t, b, o, x, d = sch.get_loops(sums)
    ib, it, ii = sch.split(i, [None, v["rt"], v["ri"]])
    do, di = sch.split(d, [None, v["ki"]])
    sch.reorder(g, ib, t, it, o, do, di, ii, b, x)
    launch(sch, {"blockIdx.z": [g], "blockIdx.y": [ib], "blockIdx.x": [t], "threadIdx.z": [it], "threadIdx.x": [o]})
    write_back(sch, sums, o, "scores")
    unroll_tile(sch, [di, ii, b, x])
    split_init(sch, sums, do)


def _schedule_products(sch: Schedule, v: Values) -> None:
    products = sch.get_sblock("products")
    g, i, e, term = sch.get_loops(products)
    ib, it, ii = sch.split(i, [None, v["rt"], v["ri"]])
    eb, et, ev = sch.split(e, [None, v["wt"], v["wv"]])
    sch.reorder(g, ib, eb, it, et, term, ii, ev)
    launch(sch, {"blockIdx.z": [g], "blockIdx.y": [ib], "blockIdx.x": [eb], "threadIdx.z": [it], "threadIdx.x": [et]})
    write = sch.cache_write(products, 0, "local")
    sch.reverse_compute_at(write, et, preserve_unit_loops=True)
    unroll_tile(sch, sch.get_loops(write)[-2:])
    unroll_tile(sch, [ii, ev])
    split_init(sch, products, term)
