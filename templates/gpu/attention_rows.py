"""The template computes attention on CPUs behind OpenCL, with a group for a part of a head. Start at `RowsAttention`.

The loops are those of `templates.cpu.attention`: what stands between the scores of a tile and its result stays in the
memory of the group's only item, which is a cache. Kernels of their own pack the keys and the values.
"""

from __future__ import annotations

from tvm import tirx
from tvm.target import Target

from templates.attention import Attention
from templates.cpu.attention import (
    ROW_STAGES,
    TiledProblem,
    schedule_tile,
    tile_constraints,
    tile_features,
    tile_knobs,
    tile_rows,
    tile_seeds,
    tiled_compute,
)
from templates.gpu.limits import GpuLimits, gpu_limits, gpu_limits_of
from templates.gpu.stages import launch, own_kernel
from templates.space import Constraint, Space, valid_seeds
from templates.stages import new_schedule
from templates.template import Template
from tuning_db.record import Config, Workload

_MAX_SCORES = 1 << 14  # of a tile of rows, 64 KB: an item's own memory is a stack
_ITEMS = 16  # of a group that packs


class RowsAttention(Template):
    """A template whose knobs are those of `templates.cpu.attention.TiledAttention`."""

    name = "gpu.attention_rows"
    op = "attention"
    dtypes = ("float32", "float16")

    def space(self, workload: Workload, target: Target) -> Space | None:
        limits = gpu_limits(target)
        if limits is None or limits.family != "cpu" or not limits.stores(workload.dtype):
            return None
        problem, registers = _problem(workload, limits), limits.sums // limits.lanes
        knobs = tile_knobs(problem)
        constraints = (
            *tile_constraints(problem, registers),
            Constraint("the scores do not fit", lambda v: v["rows"] * problem.padded_columns(v) <= _MAX_SCORES),
        )
        seeds = tile_seeds(problem, {knob.name: knob.values for knob in knobs}, registers, threads=4)
        valid = valid_seeds(seeds, knobs, constraints)
        return Space(self.name, knobs, constraints, valid, lambda v: tile_features(problem, v)) if valid else None

    def leads(self, workload: Workload, target: Target) -> bool:
        """Its first seed takes 0.7 of the time of the six kernels' first seed."""
        limits = gpu_limits(target)
        return limits is not None and limits.family == "cpu"

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        problem = _problem(workload, gpu_limits_of(target))
        sch = new_schedule(tiled_compute(problem, config.knobs, workload.dtype))
        chunk = tile_rows(sch, config.knobs)
        block, item = sch.split(chunk, [None, 1])
        launch(sch, {"blockIdx.x": [block], "threadIdx.x": [item]})
        for name in ROW_STAGES:
            sch.set_scope(sch.get_sblock(name), 0, "local")
        for whole, lanes in (("largest", "lane_maxima"), ("total", "lane_sums")):
            *_, row, lane = sch.get_loops(sch.get_sblock(whole))
            sch.compute_at(sch.get_sblock(lanes), row, preserve_unit_loops=True)
            sch.unroll(lane)
        schedule_tile(sch, config.knobs)
        for name in ("keys", "values"):
            own_kernel(sch, sch.get_sblock(name), _ITEMS, problem.lanes)
        return sch.mod["main"]


def _problem(workload: Workload, limits: GpuLimits) -> TiledProblem:
    return TiledProblem(Attention.of(workload), limits.lanes)
