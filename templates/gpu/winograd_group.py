"""The template that computes Winograd convolutions in one kernel, for OpenCL drivers for CPUs.

Start at `GpuWinogradGroup`. `gpu.winograd` writes all transformed tiles before it multiplies the first, and all
products before it transforms the first back. If the weights are small, a group of one item can instead take a few rows
of tiles from the input to the output. It keeps the intermediate results in local memory, which on a CPU is memory in
its core's cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.blocking import divisors
from templates.gpu.limits import GpuLimits, gpu_limits, gpu_limits_of
from templates.gpu.opencl_text import prefetch
from templates.gpu.stages import Group, into_registers, launch, launch_features, own_loops, split_init
from templates.gpu.winograd import SEEDED_SUMS, GpuWinograd, winograd_features
from templates.gpu.winograd_kernels import WinogradProblem, winograd_compute
from templates.space import Constraint, Knob, Space, Values
from templates.stages import new_schedule, unroll_tile
from templates.winograd_products import ProductTile, prefetch_products, tile_products
from tuning_db.record import Config, Workload

# The share of local memory that a group may take. Intel's runtime takes an item's registers from local memory, too (252
# of 256 KiB gave CL_OUT_OF_RESOURCES).
MAX_LOCAL = 7 / 8
# The most bytes of transformed weights. Every group reads all of them. Reading more than stay in a core's caches costs
# as much as is saved on the tiles.
MAX_WEIGHT_BYTES = 3 << 20


class GpuWinogradGroup(GpuWinograd):
    """A template whose groups compute `ty` rows of `tx` tiles of `m` x `m` pixels each, from the input to the output.

    Its other knobs: the register tile has `ki` output blocks by `pi` tiles, which are counted row by row. `ui` input
    channels are unrolled. `blocks` says whether the loop over output blocks is "outer" or "inner" to that over tiles,
    and `inner` which loop of the register tile is the inner one. `prefetch` fetches the next weights while the current
    ones are used.
    """

    name = "gpu.conv2d_winograd_group"

    def space(self, workload: Workload, target: Target) -> Space | None:
        limits = gpu_limits(target)
        if limits is None or limits.family != "cpu" or not (problems := self._problems(workload, limits)):
            return None
        knobs, constraints = _knobs(problems, limits), _constraints(problems, limits)
        seeds = _seeds(problems, limits, constraints)
        if not seeds:
            return None
        return Space(self.name, knobs, constraints, seeds, lambda v: _features(problems[v["m"]], v))

    def leads(self, workload: Workload, target: Target) -> bool:
        """On a CPU its first seed took 0.3 to 0.55 of the time of the direct template's first seed, in all 3 x 3 layers
        of U-Net, ESPCN and MobileViT."""
        limits = gpu_limits(target)
        return limits is not None and limits.family == "cpu"

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        problem, k = self._problem(workload, gpu_limits_of(target), config["m"]), config.knobs
        func = _schedule(problem, winograd_compute(problem, workload.epilogue, problem.tiles), k)
        return _prefetch_weights(func, problem, k) if k["prefetch"] else func


def _knobs(problems: Mapping[int, WinogradProblem], limits: GpuLimits) -> tuple[Knob, ...]:
    blocks, some = problems[2].blocks, problems.values()
    registers = limits.sums // limits.lanes
    return (
        Knob("m", tuple(problems)),
        Knob("ty", tuple(sorted({d for p in some for d in divisors(p.tiles_y, 14)}))),
        Knob("tx", tuple(sorted({d for p in some for d in divisors(p.tiles_x, 32)}))),
        Knob("ki", divisors(blocks.out_blocks, 8)),
        Knob("pi", tuple(range(1, registers + 1))),
        Knob("ui", tuple(reversed(divisors(blocks.in_lanes, 16)))),
        Knob("blocks", ("outer", "inner")),
        Knob("inner", ("tiles", "blocks")),
        Knob("prefetch", (0, 1)),
    )


def _local_bytes(p: WinogradProblem, v: Values) -> int:
    """Return the bytes of a group's transformed tiles and of their products."""
    b = p.blocks
    return 4 * p.a**2 * v["ty"] * v["tx"] * (b.in_blocks * b.in_lanes + b.out_blocks * b.lanes)


def _constraints(problems: Mapping[int, WinogradProblem], limits: GpuLimits) -> tuple[Constraint, ...]:
    blocks, registers = problems[2].blocks, limits.sums // limits.lanes

    def weight_bytes(p: WinogradProblem) -> int:
        return 4 * p.a**2 * blocks.in_blocks * blocks.in_lanes * blocks.out_blocks * blocks.lanes

    def of(v: Values) -> WinogradProblem:
        return problems[v["m"]]

    def fits(v: Values) -> bool:
        return _local_bytes(of(v), v) <= MAX_LOCAL * limits.local_memory_bytes

    return (
        Constraint(
            "groups do not divide the tiles",
            lambda v: of(v).tiles_y % v["ty"] == 0 and of(v).tiles_x % v["tx"] == 0,
        ),
        Constraint(
            "the weights are read from memory for every group", lambda v: weight_bytes(of(v)) <= MAX_WEIGHT_BYTES
        ),
        Constraint(
            "the tiles of several rows are in one piece only if the rows are whole",
            lambda v: v["ty"] == 1 or v["tx"] == of(v).tiles_x,
        ),
        Constraint("register tiles do not divide a group", lambda v: v["ty"] * v["tx"] % v["pi"] == 0),
        Constraint("the group's tile does not fit into local memory", fits),
        Constraint("the register tile does not fit", lambda v: v["ki"] * v["pi"] <= registers),
        Constraint("too many unrolled multiply-adds", lambda v: v["ki"] * v["pi"] * v["ui"] <= limits.max_unrolled),
    )


def _seeds(
    problems: Mapping[int, WinogradProblem], limits: GpuLimits, constraints: Sequence[Constraint]
) -> tuple[Values, ...]:
    """Return for each m groups of one row of tiles, or of its longest part that fits.

    The register tile is the one with the fewest loads.
    """
    seeds: list[Values] = []
    for m in (4, 2):
        p = problems[m]
        common = {"m": m, "ty": 1, "ui": max(divisors(p.blocks.in_lanes, 8)), "blocks": "outer", "inner": "tiles"}
        groups = [
            {**common, "prefetch": 1, "tx": tx, "ki": ki, "pi": pi}
            for tx in reversed(divisors(p.tiles_x, 32))
            for ki, pi in p.blocks.register_tiles(tx, min(SEEDED_SUMS, limits.sums // limits.lanes))
        ]
        best = next((group for group in groups if all(c.holds(group) for c in constraints)), None)
        if best is not None:
            seeds.append(best)
    return tuple(seeds)


def _features(p: WinogradProblem, v: Values) -> Mapping[str, float]:
    groups = p.tiles // (v["ty"] * v["tx"])
    return {
        **launch_features(p.limits, Group(), groups, _local_bytes(p, v)),
        **winograd_features(p, v, p.tiles),
        "group_tiles": float(v["ty"] * v["tx"]),
    }


def _schedule(p: WinogradProblem, func: tirx.PrimFunc, k: Values) -> tirx.PrimFunc:
    sch = new_schedule(func)
    group = _schedule_output(p, sch, k)
    for name in ("mm", "vv"):
        stage = sch.get_sblock(name)
        sch.set_scope(stage, 0, "shared")
        sch.compute_at(stage, group, preserve_unit_loops=True)
    _schedule_input(p, sch)
    _schedule_products(sch, k)
    return sch.mod["main"]


def _schedule_output(p: WinogradProblem, sch: Schedule, k: Values) -> Any:
    """Compute the output tile by tile, with "t2" in registers, and return the loop over groups."""
    n, o, y, x, v = sch.get_loops(sch.get_sblock("out"))
    yb, yt, yi = sch.split(y, [None, k["ty"], p.m])
    xb, xt, xi = sch.split(x, [None, k["tx"], p.m])
    sch.reorder(n, yb, xb, o, yt, xt, yi, xi, v)
    group = launch(sch, {"blockIdx.x": [n, yb, xb]})["blockIdx.x"]
    into_registers(sch, sch.get_sblock("t2"), xt, p.blocks.lanes)
    unroll_tile(sch, [yi, xi, v])
    return group


def _schedule_input(p: WinogradProblem, sch: Schedule) -> None:
    """Transform the input tile by tile. "t1" and the part of the padded input that it reads are kept in registers."""
    vv = sch.get_sblock("vv")
    e, q, c, t, v = own_loops(sch, vv)
    sch.reorder(c, t, e, q, v)
    for name in ("t1", "pad"):
        into_registers(sch, sch.get_sblock(name), t, p.blocks.in_lanes)
    unroll_tile(sch, [e, q, v])


def _register_tile(k: Values) -> ProductTile:
    return ProductTile(k["ki"], k["pi"], k["blocks"] == "outer")


def _schedule_products(sch: Schedule, k: Values) -> None:
    loops = tile_products(sch, _register_tile(k), ui=k["ui"], tiles_first=k["inner"] == "tiles")
    unroll_tile(sch, own_loops(sch, loops.write))
    unroll_tile(sch, [loops.unrolled, *loops.register_tile])
    split_init(sch, sch.get_sblock("mm"), loops.blocks)


def _prefetch_weights(func: tirx.PrimFunc, p: WinogradProblem, k: Values) -> tirx.PrimFunc:
    at_once = k["ty"] * k["tx"]
    return prefetch_products(func, p.blocks.lanes, _register_tile(k), at_once=at_once, fetch=prefetch)
