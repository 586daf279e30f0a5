"""Compute what the agent sees, and what it is rewarded with. All functions are pure functions of configs and times.

The source is Liu et al., "Woodpecker-DL: Accelerating Deep Neural Networks via Hardware-Aware Multifaceted
Optimizations", section 2.4 (state space, equations 3 and 4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from templates.space import Space
from tuning_db.record import Config

# These are the paper's 17 elements without the average: nine of the workload, then threads, tile and reduction split.
_CONV = ("batch", "in_channels", "out_channels", "kernel.0", "kernel.1", "height", "width", "strides.0", "padding.0")
_CONFIG = ("T_x", "T_y", "T_z", "Tile_x", "Tile_y", "Tile_z", "Tile_rz")
# Maps the paper's elements to our knobs: x stands for columns, y for rows, z for output channels, and rz for the
# reduction.
_ROLES: Mapping[str, tuple[str, ...]] = {
    "T_x": ("xt", "pt"),
    "T_y": ("yt", "groups", "rows"),
    "T_z": ("kt",),
    "Tile_x": ("xi", "pi", "tw", "tiles"),
    "Tile_y": ("yi", "th"),
    "Tile_z": ("ki", "ob", "nb"),
    "Tile_rz": ("ui", "ct", "ks"),
}


def fits_paper(context: Mapping[str, float]) -> bool:
    """Return whether the workload is a conv2d, which the paper's 17 elements describe."""
    return all(_feature(context, name) is not None for name in ("in_channels", "out_channels", "kernel.0", "height"))


def paper_observation(space: Space, config: Config, context: Mapping[str, float], average: float) -> list[float]:
    """Return the paper's O_conv, which has 17 numbers. Sizes are in powers of two; `average` is alpha relative to the
    first run time."""
    workload = [_feature(context, name) or 0.0 for name in _CONV]
    return [*workload, *(_role(space, config, role) for role in _CONFIG), average]


def general_observation(space: Space, config: Config, context: Mapping[str, float], average: float) -> list[float]:
    """Return every size of the workload in powers of two, every knob's position in its order (0 to 1), and alpha."""
    sizes = [context[name] for name in sorted(context)]
    places = [k.values.index(config[k.name]) / max(1, len(k.values) - 1) for k in space.knobs]
    return [*sizes, *places, average]


def _feature(context: Mapping[str, float], name: str) -> float | None:
    """Return a size of the workload, or None if it has no such size. `name` is an attribute, with the index of one of
    its numbers where it has several."""
    stem, _, place = name.partition(".")
    return context.get(f"workload.{stem}.{place or 0}")


def _role(space: Space, config: Config, role: str) -> float:
    knob = next((k.name for k in space.knobs if k.name in _ROLES[role]), None)
    value = config[knob] if knob is not None else 0
    return math.log2(1 + value) if isinstance(value, int | float) else 0.0


def next_average(average: float, seconds: float, step: int, printed: bool) -> float:
    """Return alpha_t of equation 3, from alpha_{t-1}, the run time `seconds` (beta_t) and `step` (t, counted from 1).

    As printed, (0.8 alpha_{t-1} + beta_t) / t falls towards beta / t. After twenty steps at a constant run time it is a
    twentieth of that time, every run is "slower than the average", and the reward no longer says anything. So by
    default alpha is what the text calls it, a moving average: 0.8 alpha_{t-1} + 0.2 beta_t, which begins at beta_1.
    """
    if not math.isfinite(seconds):
        return average
    if printed:
        return (0.8 * average + seconds) / step
    return seconds if step == 1 or average == 0 else 0.8 * average + 0.2 * seconds


def reward(average: float, seconds: float, printed: bool) -> float:
    """Return r_t of equation 4: alpha_{t-1} less the run time, which is clamped at twice alpha_{t-1}. A failure counts
    as clamped.

    As printed, the reward is in microseconds. Otherwise it is relative to alpha_{t-1}: between -1 and 1, on the same
    scale for every workload.
    """
    gained = average - min(seconds, 2 * average)
    if printed:
        return gained * 1e6
    return gained / average if average > 0 else 0.0
