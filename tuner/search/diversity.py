"""Choose configs that differ from each other, by distances between configs. All functions are pure. Start at
`spread_out` and `diverse_batch`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import eq
from typing import Any

import numpy as np

from templates.space import Space
from tuning_db.record import Config


def position(space: Space, config: Config) -> tuple[float, ...]:
    """Return the position of each knob's value in the knob's order, scaled to 0..1."""
    return tuple(k.values.index(config[k.name]) / max(1, len(k.values) - 1) for k in space.knobs)


def spread_out(space: Space, pool: Sequence[Config], taken: Sequence[Config], n: int) -> list[Config]:
    """Choose `n` configs of `pool` (all of one template). Each is the farthest from `taken` and from those chosen
    before it."""
    if not pool:
        return []
    points = np.array([position(space, c) for c in pool])
    nearest = np.full(len(pool), math.inf)
    for config in taken:
        nearest = np.minimum(nearest, np.abs(points - position(space, config)).sum(axis=1))
    chosen: list[Config] = []
    for _ in range(min(n, len(pool))):
        at = int(nearest.argmax())
        chosen.append(pool[at])
        nearest = np.minimum(nearest, np.abs(points - points[at]).sum(axis=1))
        nearest[at] = -1
    return chosen


def _likeness(a: tuple[Any, ...], b: tuple[Any, ...]) -> float:
    """Return the share of knobs with equal values; between templates it is 0. Each tuple holds a template and its
    knobs' values, ordered by the knobs' names."""
    return (sum(map(eq, a, b)) - 1) / max(1, len(a) - 1) if a[0] == b[0] else 0.0


def diverse_batch(ranked: Sequence[Config], scores: Sequence[float], n: int, weight: float) -> list[Config]:
    """Choose `n` of the configs (best first), by score less `weight` times the likeness to the most similar one chosen
    before.

    `scores` are in units of the best throughput (1 is the best measured), and so is `weight`, the value of being new.
    """
    rows = [(c.template, *c.knobs.values()) for c in ranked]
    left = list(range(len(ranked)))
    likeness = [0.0] * len(ranked)
    chosen: list[Config] = []
    while left and len(chosen) < n:
        at = max(left, key=lambda i: scores[i] - weight * likeness[i])
        left.remove(at)
        chosen.append(ranked[at])
        for i in left:
            likeness[i] = max(likeness[i], _likeness(rows[i], rows[at]))
    return chosen
