"""A space of realistic size and shape with an analytic latency: what a search is judged on without a device.

Two templates like those of a blocked convolution: a direct one (register tile, unrolling, order, split) and a
Winograd one. Latency follows the loops (accumulator use, loads per multiply-add, code size, memory traffic,
parallel chunks) with a repeatable ruggedness of a few percent per config: neighbours differ as measured ones do.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

from templates.space import Constraint, Knob, SearchSpace, Space, Values
from tuning_db.record import Config, DeviceKey, Failure, FailureKind, Trial, Workload

WORKLOAD = Workload("conv2d", {"channels": 128, "size": 28})
DEVICE = DeviceKey("cpu", "synthetic", "analytic")


def trial_of(config: Config, seconds: float) -> Trial:
    """A trial with that time; a failed one for infinity."""
    if math.isinf(seconds):
        return Trial(WORKLOAD, DEVICE, config, 1, failure=Failure(FailureKind.COMPILE, "does not compile"))
    return Trial(WORKLOAD, DEVICE, config, 1, times=(seconds,))


def rugged(config: Config, share: float) -> float:
    """A factor in 1..1+share that depends on nothing but the config."""
    digest = hashlib.sha256(config.key.encode()).digest()
    return 1 + share * int.from_bytes(digest[:4], "big") / 2**32


def direct_space(rows: int = 28) -> Space:
    widths = (1, 2, 4, 7, 10, 14, 28)
    knobs = (
        Knob("ob", (1, 2, 4, 8)),
        Knob("tw", widths),
        Knob("th", (1, 2, 4)),
        Knob("ui", (1, 2, 4, 8, 16)),
        Knob("order", ("c.kh.kw.i", "c.kh.i.kw", "c.i.kh.kw")),
        Knob("unroll_kw", (0, 1)),
        Knob("inner", ("pixels", "blocks")),
        Knob("split", ("channels", "rows")),
        Knob("skip", (0, 1)),
        Knob("prefetch", (0, 1)),
    )
    constraints = (
        Constraint("the register tile does not fit", lambda v: v["ob"] * v["tw"] * v["th"] <= 28),
        Constraint(
            "too many unrolled multiply-adds",
            lambda v: v["ob"] * v["tw"] * v["th"] * v["ui"] * (3 if v["unroll_kw"] else 1) <= 350,
        ),
        Constraint("rows can only be skipped in tiles of one row", lambda v: not (v["skip"] and v["th"] > 1)),
        Constraint("prefetching needs channels outermost", lambda v: not v["prefetch"] or v["split"] == "channels"),
    )
    seeds = (
        {"ob": 2, "tw": 14, "ui": 4, "split": "rows"},
        {"ob": 4, "tw": 7, "ui": 4, "split": "rows"},
        {"ob": 1, "tw": 28, "ui": 4, "split": "rows"},
    )

    def features(v: Values) -> dict[str, float]:
        pixels = v["tw"] * v["th"]
        return {
            "acc": float(v["ob"] * pixels),
            "loads_per_fma": (v["ob"] + pixels) / (v["ob"] * pixels),
            "body": float(v["ob"] * pixels * v["ui"] * (3 if v["unroll_kw"] else 1)),
            "chunks": float(8 // v["ob"] if v["split"] == "channels" else rows // v["th"]),
        }

    return Space("direct", knobs, constraints, seeds, features)


def direct_seconds(config: Config) -> float:
    v = config.knobs
    pixels, acc = v["tw"] * v["th"], v["ob"] * v["tw"] * v["th"]
    latency_bound = max(1.0, 8 / acc)  # two units, four cycles: fewer sums than eight wait for each other
    load_bound = 0.75 + 0.5 * (v["ob"] / acc + 0.6 * pixels / acc)
    spills = 1.35 if v["inner"] == "blocks" and acc > 14 else 1.0
    loop = 1 + 4.0 / (acc * v["ui"] * (3 if v["unroll_kw"] else 1))
    code = 1 + 0.15 * max(0.0, acc * v["ui"] * (3 if v["unroll_kw"] else 1) / 350 - 0.55)
    order = {"c.kh.kw.i": 1.0, "c.kh.i.kw": 1.03, "c.i.kh.kw": 1.12 if v["ui"] < 4 else 1.05}[v["order"]]
    chunks = 8 // v["ob"] if v["split"] == "channels" else 28 // v["th"]
    balance = math.ceil(chunks / 2) * 2 / chunks
    memory = 1.14 if v["split"] == "channels" and not v["prefetch"] else 1.05 if v["split"] == "channels" else 1.0
    skip = 0.955 if v["skip"] else 1.0
    waste = -(-28 // v["tw"]) * v["tw"] / 28
    bound = latency_bound * load_bound * spills * loop * code * order * balance * memory * skip * waste
    return 250e-6 * bound * rugged(config, 0.04)


def winograd_space() -> Space:
    knobs = (
        Knob("m", (2, 4, 6)),
        Knob("group", (1, 2, 4, 7, 14)),
        Knob("ob", (1, 2, 4)),
        Knob("tile", (2, 4, 7, 14)),
        Knob("ui", (1, 2, 4, 8, 16)),
        Knob("split", ("channels", "rows")),
        Knob("prefetch", (0, 1)),
        Knob("transform_unroll", (0, 1)),
    )
    constraints = (
        Constraint("the register tile does not fit", lambda v: v["ob"] * v["tile"] <= 28),
        Constraint("too many unrolled multiply-adds", lambda v: v["ob"] * v["tile"] * v["ui"] <= 350),
    )
    seeds = (
        {"m": 4, "group": 4, "ob": 2, "tile": 7, "ui": 4, "split": "rows", "prefetch": 1, "transform_unroll": 1},
        {"m": 2, "group": 4, "ob": 2, "tile": 7, "ui": 4, "split": "rows", "prefetch": 1, "transform_unroll": 1},
    )
    return Space("winograd", knobs, constraints, seeds)


def winograd_seconds(config: Config, base: float) -> float:
    """`base`: seconds of a perfect F(4,3). F(6,3) does not compile where its transform is unrolled."""
    v = config.knobs
    if v["m"] == 6 and v["transform_unroll"]:
        return math.inf
    acc = v["ob"] * v["tile"]
    tiles = {2: 14 * 14, 4: 7 * 7, 6: 25}[v["m"]]
    work = {2: 1.7, 4: 1.0, 6: 1.05}[v["m"]]
    gemm = max(1.0, 8 / acc) * (0.8 + 0.5 * (v["ob"] + v["tile"]) / acc) * (1 + 3.0 / (acc * v["ui"]))
    cache = 1 + 0.25 * abs(math.log2(v["group"] * v["tile"] / 21))
    waste = -(-tiles // v["tile"]) * v["tile"] / tiles
    memory = 1.25 if not v["prefetch"] else 1.0
    balance = 1.15 if v["split"] == "channels" and v["ob"] == 4 else 1.04 if v["split"] == "channels" else 1.0
    transform = 0.25 * work * (1.0 if v["transform_unroll"] else 1.6)
    return base * (work * gemm * waste * memory * balance + transform) * cache * rugged(config, 0.04)


@dataclass(frozen=True)
class Landscape:
    """A search space, the seconds of each config, and the best there is."""

    space: SearchSpace
    seconds: Callable[[Config], float]

    @property
    def optimum(self) -> float:
        return min(map(self.seconds, self.space))

    def trials(self, configs: list[Config]) -> list[Trial]:
        return [trial_of(c, self.seconds(c)) for c in configs]


def landscape(winograd_base: float) -> Landscape:
    """90e-6: Winograd is worth about twice the direct template; 400e-6: less than half."""

    def seconds(config: Config) -> float:
        return direct_seconds(config) if config.template == "direct" else winograd_seconds(config, winograd_base)

    return Landscape(SearchSpace((direct_space(), winograd_space())), seconds)


def tiny_space() -> SearchSpace:
    """18 + 4 valid configs, one seed in each."""
    first = Space(
        "a",
        (Knob("x", (1, 2, 3, 4, 5)), Knob("y", ("p", "q")), Knob("z", (False, True))),
        (Constraint("x with p", lambda v: v["y"] == "q" or v["x"] != 3),),
        ({"x": 2, "y": "q"},),
    )
    second = Space("b", (Knob("w", (8, 16, 32, 64)),), (), ({"w": 32},))
    return SearchSpace((first, second))
