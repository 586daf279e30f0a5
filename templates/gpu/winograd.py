"""The template that computes Winograd convolutions F(m x m, 3 x 3), with m = 2 or 4, on OpenCL and CUDA devices.

It runs three kernels. Input tiles of (m+2)^2 pixels are transformed (stage "vv") and multiplied with transformed
weights, as (m+2)^2 independent matrix products on a register tile ("mm"). The products are transformed back ("out",
with the epilogue). Intermediate results are kept in global workspaces, with the tiles of all images on one axis.
Neighbouring work-items take neighbouring tiles, and so read neighbouring memory.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016, section 4.1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import tirx
from tvm.target import Target

from templates.blocking import blocking, divisors
from templates.gpu.limits import GpuLimits, gpu_limits, gpu_limits_of
from templates.gpu.stages import (
    cpu_sums_constraint,
    launch_features,
    limit_constraints,
    searched_widths,
)
from templates.gpu.winograd_kernels import WinogradProblem, schedule_winograd, winograd_compute
from templates.space import Constraint, Knob, Space, Values
from templates.template import AnchorTemplate, Layout, Layouts
from templates.winograd_algebra import MATRICES, suits_winograd, transformed_weight
from templates.workloads import conv_of
from tuning_db.record import Config, Workload

# The largest ratio of multiplied tiles to needed ones. Configs that exceed it are never fast.
MAX_WASTE = 1.34
# The fewest work-items of a group. With fewer most lanes of a GPU's SIMD unit are idle.
MIN_ITEMS = 16
# Items of a GPU's group along the tiles.
_GROUP_TILES = (1, 2, 4, 7, 8, 14, 16, 28, 32, 64)
# Vectors of sums of a CPU's seed configs. With as many as its registers hold, drivers keep some of them in memory.
SEEDED_SUMS = 20
# The time in which a weight is loaded from memory (WEIGHT_TILES) or from the second cache level (SWEEP_TILES), as the
# number of tiles that it could be multiplied with meanwhile. The numbers assume a core of 32 lanes that reads 10 GB/s
# from memory and 32 bytes a cycle from the cache, and only order the seed configs.
WEIGHT_TILES = 40
SWEEP_TILES = 4


class GpuWinograd(AnchorTemplate):
    """A template whose output tiles have `m` x `m` pixels.

    Knobs of the matrix products: an item computes `ki` channel blocks by `pi` tiles, and a group has `kt` by `pt` such
    items. `vec` is the number of lanes of a vector. `vv` says where transformed tiles are read from: "global" memory,
    registers ("local") or local memory ("shared"). `wshared` copies weights into local memory, and `ct` is the number
    of input blocks per copy into it. `ui` input channels are unrolled. `inner` says which loop of a tile is the inner
    one. `prefetch` fetches the weights of the next output blocks while the current ones are used (CPUs).

    Knobs of the transforms: `tv` is the number of lanes of a vector, and a group has `items` items. `pad` says where
    the padded input is kept: in registers ("local"), or in memory that a kernel of its own fills ("kernel").
    """

    name = "gpu.conv2d_winograd"
    op = "conv2d"
    exact = False
    spreads_nan = True

    def _problem(self, workload: Workload, limits: GpuLimits, m: int) -> WinogradProblem:
        conv = conv_of(workload)
        return WinogradProblem(conv, blocking(conv, limits.lanes), m, limits)

    def _problems(self, workload: Workload, limits: GpuLimits) -> Mapping[int, WinogradProblem]:
        """Return the problem for each `m`. There is none if the Winograd templates do not compute the workload."""
        if not suits_winograd(conv_of(workload), limits.lanes):
            return {}
        return {m: self._problem(workload, limits, m) for m in MATRICES}

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        block = Layout(gpu_limits_of(target).lanes)
        return Layouts(block, block)

    def space(self, workload: Workload, target: Target) -> Space | None:
        limits = gpu_limits(target)
        if limits is None or not (problems := self._problems(workload, limits)):
            return None
        knobs = _knobs(problems, limits)
        constraints = _constraints(problems, limits, knobs)
        seeds = _seeds(problems, limits, knobs, constraints)
        return Space(self.name, knobs, constraints, seeds, lambda v: _features(problems[v["m"]], v))

    def weight_key(self, workload: Workload, target: Target, config: Config) -> str:
        return f"m={config['m']}"

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        problem = self._problem(workload, gpu_limits_of(target), config["m"])
        return transformed_weight(problem.m, problem.blocks, weight)

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        problem = self._problem(workload, gpu_limits_of(target), config["m"])
        func = winograd_compute(problem, workload.epilogue, problem.covered(config.knobs))
        return schedule_winograd(problem, func, config.knobs)


def _knobs(problems: Mapping[int, WinogradProblem], limits: GpuLimits) -> tuple[Knob, ...]:
    blocks, tiles = problems[2].blocks, max(p.tiles for p in problems.values())

    def up_to(extent: int, *values: int) -> tuple[int, ...]:
        return tuple(v for v in values if v <= extent)

    local, on_cpu = limits.shares_memory, limits.family == "cpu"
    return (
        Knob("m", tuple(problems)),
        Knob("ki", divisors(blocks.out_blocks, 8)),
        Knob("pi", up_to(tiles, *range(1, 9), *((9, 10, 12, 13, 14, 16, 20, 25) if on_cpu else (14,)))),
        Knob("kt", divisors(blocks.out_blocks, 16)),
        Knob("pt", up_to(tiles, *((*range(1, 9), 10, 13, 14, 16, 20, 25, 28, 32) if on_cpu else _GROUP_TILES))),
        Knob("vec", searched_widths(limits, blocks.lanes)),
        Knob("vv", ("global", "local", "shared") if local else ("global", "local")),
        Knob("wshared", (0, 1) if local else (0,)),
        Knob("ct", tuple(d for d in (1, 2, 4, 8) if blocks.in_blocks % d == 0)),
        Knob("ui", tuple(reversed(divisors(blocks.in_lanes, 16)))),
        Knob("inner", ("tiles", "blocks")),
        Knob("tv", searched_widths(limits, blocks.lanes)),
        Knob("items", up_to(limits.max_threads, 8, 16, 32, 64, 128, 256)),
        Knob("pad", ("local", "kernel")),
        # Where it does not apply this knob is absent, so that configs in databases stay valid.
        *([Knob("prefetch", (0, 1))] if on_cpu else []),
    )


def _constraints(
    problems: Mapping[int, WinogradProblem], limits: GpuLimits, knobs: tuple[Knob, ...]
) -> tuple[Constraint, ...]:
    blocks = problems[2].blocks
    most_sums = prod(max(knob.values) for knob in knobs if knob.name in ("ki", "pi"))
    cpu = limits.family == "cpu"

    def of(v: Values) -> WinogradProblem:
        return problems[v["m"]]

    def enough_items(v: Values) -> bool:
        whole = of(v).groups(v) == of(v).a ** 2  # one group computes a matrix product alone
        return cpu or ((whole or of(v).group(v).size >= MIN_ITEMS) and v["items"] >= MIN_ITEMS)

    return (
        Constraint("the tile does not divide the channels", lambda v: blocks.out_blocks % (v["kt"] * v["ki"]) == 0),
        *limit_constraints(limits, lambda v: of(v).group(v), lambda v: of(v).sums(v), lambda v: of(v).local_bytes(v)),
        Constraint("a transform does not fit into registers", lambda v: cpu or of(v).a ** 2 * v["tv"] <= limits.sums),
        Constraint("too many tiles are multiplied in vain", lambda v: of(v).waste(v) <= MAX_WASTE),
        Constraint("too many unrolled multiply-adds", lambda v: v["ki"] * v["pi"] * v["ui"] <= limits.max_unrolled),
        Constraint("too few work-items in a group", enough_items),
        cpu_sums_constraint(limits, most_sums, lambda v: v["ki"] * v["pi"]),
        Constraint(
            "registers cannot be indexed by a loop", lambda v: cpu or v["vv"] != "local" or v["ui"] == blocks.in_lanes
        ),
        Constraint("nothing is copied in blocks", lambda v: v["ct"] == 1 or v["vv"] == "shared" or v["wshared"] == 1),
    )


@dataclass(frozen=True)
class _Style:
    """How seed configs use a device's memory in the products, and the sizes of groups and tiles that suit this use."""

    vv: str
    wshared: int
    items: int
    sums: int  # the largest number of vectors of sums
    transform_items: int
    pad: str = "local"
    ki: int = 0  # channel blocks of a tile; 0 allows any number
    prefetch: int = 0


# The styles for each family, in the order in which they are worth trying.
_STYLES = {
    "cpu": (
        _Style("global", 0, 16, SEEDED_SUMS, 32, prefetch=1),
        # For small images of many channels: all tiles are in registers, so that every weight is read once.
        _Style("global", 0, 16, SEEDED_SUMS, 32, ki=1, prefetch=1),
        _Style("local", 0, 1, 14, 64, "kernel"),
    ),
    "nvidia": (
        _Style("shared", 1, 128, 16, 128),
        _Style("shared", 1, 256, 8, 64, "kernel"),
        _Style("global", 0, 128, 16, 64),
    ),
}
_OTHER_STYLES = (
    _Style("local", 0, 64, 6, 64),
    _Style("global", 0, 64, 8, 64),
    _Style("shared", 0, 64, 8, 64, "kernel"),
)


def _seeds(
    problems: Mapping[int, WinogradProblem],
    limits: GpuLimits,
    knobs: tuple[Knob, ...],
    constraints: Sequence[Constraint],
) -> tuple[Values, ...]:
    """Return for each style and m the tile of an item with the fewest loads per multiply-add.

    Groups have about the style's size. The vectors of transforms are the longest with which a transform fits into
    registers. On a CPU the seeds are sorted by their expected cost.
    """
    values = {knob.name: knob.values for knob in knobs}
    seeds: list[Values] = []
    for style, m in itertools.product(_STYLES.get(limits.family, _OTHER_STYLES), (4, 2)):
        if style.vv not in values["vv"] or style.wshared not in values["wshared"]:
            continue
        problem = problems[m]
        fixed = {name: first for name, (first, *_) in values.items()}
        fixed |= {"m": m, "vv": style.vv, "wshared": style.wshared, "pad": style.pad}
        fixed |= {"prefetch": style.prefetch} if "prefetch" in values else {}
        fixed["tv"] = next(
            (t for t in values["tv"] if limits.family == "cpu" or problem.a**2 * t <= limits.sums), values["tv"][-1]
        )
        fixed["items"] = max(i for i in values["items"] if i <= style.transform_items)
        blocks = (style.ki,) if style.ki else values["ki"]
        tiles = [{**fixed, "ki": ki, "pi": pi} for ki, pi in itertools.product(blocks, values["pi"])]
        if limits.family == "cpu":  # on a CPU a loop may index the registers
            tiles = [{**t, "ui": _most_unrolled(limits, values["ui"], t["ki"] * t["pi"])} for t in tiles]
        fitting = [t for t in tiles if t["ki"] * t["pi"] <= style.sums and problem.sums(t) <= limits.sums]
        for tile in sorted(fitting, key=lambda t: _loads(t) * problem.waste(t)):
            groups = [{**tile, "kt": kt, "pt": pt} for kt, pt in itertools.product(values["kt"], values["pt"])]
            valid = [g for g in groups if all(c.holds(g) for c in constraints)]
            if valid:
                seeds.append(min(valid, key=lambda g: _distance(problem, style.items, g)))
                break
    if limits.family == "cpu":
        seeds.sort(key=lambda seed: _expected_cost(problems[seed["m"]], seed))
    return tuple(seeds)


def _expected_cost(problem: WinogradProblem, v: Values) -> float:
    """Estimate the cost of the products on a CPU.

    It counts multiply-adds, loads of tiles, and the time to load the weights: once from memory, and for every sweep
    over the tiles from the second cache level.
    """
    tiles = problem.covered(v)
    fetched = WEIGHT_TILES if v["prefetch"] else 2 * WEIGHT_TILES
    return problem.a**2 * (tiles * (1 + _loads(v)) + tiles / v["pi"] * SWEEP_TILES + fetched)


def _most_unrolled(limits: GpuLimits, ui: Sequence[int], sums: int) -> int:
    return next((u for u in ui if sums * u <= limits.max_unrolled), ui[-1])


def _loads(v: Values) -> float:
    """Return the loads per multiply-add in the matrix products."""
    return float((v["ki"] + v["pi"]) / (v["ki"] * v["pi"]))


def _distance(problem: WinogradProblem, items: int, v: Values) -> float:
    return abs(math.log2(problem.group(v).size / items)) + 4 * math.log2(problem.waste(v))


def _features(p: WinogradProblem, v: Values) -> Mapping[str, float]:
    tiles, channels = v["pt"] * v["pi"], v["kt"] * v["ki"] * p.blocks.lanes
    return {
        **launch_features(p.limits, p.group(v), p.groups(v), p.local_bytes(v)),
        **winograd_features(p, v, p.covered(v)),
        "flop_per_byte": 2.0 * tiles * channels / (4.0 * (tiles + channels)),
        "sums": float(p.sums(v)),
        "waste": p.waste(v),
        "wino_transform_items": float(p.tiles * p.conv.in_channels // v["tv"]),
        "wino_transform_sums": float(p.a**2 * v["tv"]),
    }


def winograd_features(p: WinogradProblem, v: Values, covered: int) -> dict[str, float]:
    """Compute the features that both Winograd templates give to a cost model. `covered` tiles are multiplied."""
    squares = p.a**2
    wanted = p.conv.batch * p.conv.out_height * p.conv.out_width
    return {
        "accumulators": float(v["ki"] * v["pi"]),
        "loads_per_fma": _loads(v),
        "body_fmas": float(v["ki"] * v["pi"] * v["ui"]),
        "fetches_weights": float(v.get("prefetch", 0)),
        "wino_multiplications": squares / (9.0 * p.m**2) * p.tiles * p.m**2 / wanted,
        "wino_tiles_bytes": 4.0 * squares * covered * (p.conv.in_channels + p.conv.out_channels),
    }
