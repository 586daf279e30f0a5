"""This module finds configs of our templates that are close to AutoTVM's. Start at `translated`.

Tiles of both are compared by what they are physically: how many output channels, rows and columns a work-item (on a
CPU, a register tile) computes, and how many work-items a group has. The nearest config of ours is worth a trial.
"""

from __future__ import annotations

import heapq
import itertools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from tvm.target import Target

from templates.space import SearchSpace, Space, Values
from templates.template import AnchorTemplate, template_named
from tuning_db.record import Config, Workload

AUTOTVM = "autotvm/"  # prefix of the names of AutoTVM's templates in the database
EXPANSIONS = 100  # configs whose neighbours are generated; thousands of configs are met, in some milliseconds


@dataclass(frozen=True)
class Tile:
    """How much a work-item computes along output channels, rows and columns, and how many work-items a group has.

    `group` counts along the same axes. It is None if it is unknown, or if there are no groups.
    """

    item: tuple[float, ...]
    group: tuple[float, ...] | None = None


Extents = Callable[[Values, int], Tile]  # (a config's knobs, lanes of a channel block) -> its tile


def translated(config: Config, workload: Workload, space: SearchSpace, target: Target) -> list[Config]:
    """Return the valid configs nearest to a config of AutoTVM, one of each template whose tiles can be compared.

    The list is empty if the config cannot be read.
    """
    wanted = _tile_of(config)
    if wanted is None:
        return []
    found = []
    for one in space.spaces:
        template, extents = template_named(one.template), _OURS.get(one.template)
        if extents is not None and isinstance(template, AnchorTemplate):
            lanes = template.layouts(workload, target).out.block or 1
            found += _nearest(one, partial(_distance, wanted, extents, lanes))
    return found


def _nearest(space: Space, distance: Callable[[Values], float]) -> list[Config]:
    """Return the nearest config that a best-first search from the seed configs finds, or nothing if there are none."""
    order = itertools.count()
    open_ = [(distance(c.knobs), next(order), c) for c in space.seed_configs()]
    heapq.heapify(open_)
    seen = {config for _, _, config in open_}
    best = min(open_, default=None)
    for _ in range(EXPANSIONS):
        if not open_ or best is None or not best[0]:
            break
        for config in space.neighbours(heapq.heappop(open_)[2]):
            if config not in seen:
                seen.add(config)
                found = distance(config.knobs), next(order), config
                best = min(best, found)
                heapq.heappush(open_, found)
    return [best[2]] if best else []


def _distance(wanted: Tile, extents: Extents, lanes: int, knobs: Values) -> float:
    """Return the distance of a config from the wanted tile: powers of two, summed over the extents that both know."""
    ours = extents(knobs, lanes)
    pairs = list(zip(wanted.item, ours.item, strict=True))
    if wanted.group is not None and ours.group is not None:
        pairs += zip(wanted.group, ours.group, strict=True)
    return sum(abs(math.log2(a / b)) for a, b in pairs)


# How to read AutoTVM's configs.


def _tile_of(config: Config) -> Tile | None:
    task = config.template.removeprefix(AUTOTVM)
    read = next((read for pattern, read in _THEIRS if re.fullmatch(pattern, task)), None)
    try:
        tile = read and read(config.knobs)
        return tile if tile and all(extent > 0 for extent in (*tile.item, *(tile.group or ()))) else None
    except (KeyError, TypeError, ValueError, IndexError):  # the config is of another version of AutoTVM's template
        return None


def _virtual_threads(k: Values) -> Tile:
    """Read a config that splits every axis into (blocks, virtual threads, threads, iterations of a thread)."""
    axes = (k["tile_f"], k["tile_y"], k["tile_x"])
    return Tile(tuple(v * i for _, v, _, i in axes), tuple(t for _, _, t, _ in axes))


def _spatial_pack(k: Values) -> Tile:
    """Read a config that splits an axis into (blocks, threads, vector) on a GPU and (blocks, vector) on a CPU."""
    axes = (k["tile_co"], k["tile_oh"], k["tile_ow"])
    return Tile(tuple(a[-1] for a in axes), tuple(a[1] for a in axes) if len(axes[0]) == 3 else None)


def _packed_x86(k: Values) -> Tile:
    rows = k.get("tile_oh", 1)
    return Tile((k["tile_oc"][-1], rows, k["tile_ow"][-1]))


def _intel(k: Values) -> Tile:
    return Tile((k["tile_oc"], k["block_oh"], k["block_ow"]))


_THEIRS: tuple[tuple[str, Callable[[Values], Tile]], ...] = (
    (r"(depthwise_)?conv2d_nchw\.cuda", _virtual_threads),
    (r"conv2d_nchw_spatial_pack\.(mali|bifrost|arm_cpu)", _spatial_pack),
    (r"conv2d_NCHWc\.x86", _packed_x86),
    (r"conv2d_NCHWc\.intel_graphics", _intel),
)

# How to read our configs; `lanes` are those of a channel block.


def _gpu_direct(k: Values, lanes: int) -> Tile:
    return Tile((k["ki"] * k["vec"], k["yi"], k["xi"]), (k["kt"] * lanes / k["vec"], k["yt"], k["xt"]))


def _gpu_depthwise(k: Values, lanes: int) -> Tile:
    return Tile((k["vec"], k["yi"], k["xi"]), (k["ct"] * lanes / k["vec"], k["yt"], k["xt"]))


def _mali(k: Values, _lanes: int) -> Tile:
    return Tile((k["ki"] * k["vec"], k["yi"], k["xi"]), (k["kt"], k["yt"], k["xt"]))


def _register_tile(k: Values, lanes: int) -> Tile:
    return Tile((k["ob"] * lanes, k["th"], k["tw"]))


_OURS: Mapping[str, Extents] = {
    "cpu.conv2d_direct": _register_tile,
    "cpu.conv2d_direct_nchw": _register_tile,
    "gpu.conv2d_direct": _gpu_direct,
    "gpu.conv2d_direct_nchw": _gpu_direct,
    "gpu.depthwise": _gpu_depthwise,
    "intel.conv2d_subgroup": _register_tile,
    "mali.conv2d_spatial_pack": _mali,
}
