"""What turns a detection head's results into boxes: how the work is cut up, and expressions that all of them need.

A row's places (pixels of a map, anchors) are cut into runs, an item has a run. Start at `each_run`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from templates.space import Constraint, Knob, Space, Values
from vision_ops.kernels import Cells, Emitter, held


@dataclass(frozen=True)
class Runs:
    """`rows` times `length` places."""

    rows: int
    length: int


def decode_space(template: str, runs: Runs, emitter: Emitter) -> Space | None:
    """`places` of a run, `items` in a group; None where there is no place."""
    if not runs.rows * runs.length:
        return None
    sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    knobs = (Knob("places", sizes), Knob("items", emitter.group_sizes(1, 8, 16, 32, 64, 128, 256)))
    constraints = (Constraint("a run is longer than a row", lambda v: v["places"] < 2 * runs.length),)
    most = max(size for size in sizes if size < 2 * runs.length)
    shapes = ((64, 1), (16, 8)) if emitter.on_processor else ((1, 64), (1, 256))
    seeds = tuple({"places": min(p, most), "items": min(i, emitter.max_items)} for p, i in shapes)
    return Space(template, knobs, constraints, seeds, partial(_features, runs))


def _features(runs: Runs, v: Values) -> Mapping[str, float]:
    items = runs.rows * -(-runs.length // v["places"])
    return {"items_in_all": float(items), "groups": items / v["items"]}


@dataclass(frozen=True)
class Run:
    """Places of a row, `first` and what follows it."""

    row: Any
    first: Any
    length: Any

    @contextmanager
    def each(self) -> Iterator[tuple[Any, Any]]:
        """A loop over them; gives a place's number in the run and in the row."""
        with T.serial(0, self.length) as i:
            yield i, held(self.first + i)


@contextmanager
def each_run(runs: Runs, emitter: Emitter, v: Values) -> Iterator[Run]:
    """A launch with an item for every run."""
    parts = -(-runs.length // v["places"])
    with emitter.each(runs.rows * parts, v["items"]) as at:
        first = held(at % parts * v["places"])
        yield Run(held(at // parts), first, held(tirx.min(tirx.const(v["places"], "int32"), runs.length - first)))


def number(value: float) -> Any:
    return tirx.const(value, "float32")


def clipped(value: Any, low: float, high: float) -> Any:
    return tirx.max(tirx.min(value, number(high)), number(low))


def sigmoid(value: Any) -> Any:
    return number(1.0) / (number(1.0) + tirx.exp(-value))


def store_corners(cells: Cells, at: tuple[Any, ...], corners: tuple[Any, Any, Any, Any]) -> None:
    for i, corner in enumerate(corners):
        cells[(*at, i)] = corner


def numpy_sigmoid(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        out: np.ndarray = 1 / (1 + np.exp(-values.astype(np.float64)))
    return out


def numpy_corners(centre: np.ndarray, extent: np.ndarray) -> np.ndarray:
    """(..., 4) from (..., 2) each."""
    return np.concatenate([centre - extent / 2, centre + extent / 2], -1)


def random_anchors(rng: np.random.Generator, anchors: int, size: float) -> np.ndarray:
    """(anchors, 4): corners of boxes in an image of `size`."""
    centre, extent = rng.random((anchors, 2)) * size, (0.05 + 0.3 * rng.random((anchors, 2))) * size
    return numpy_corners(centre, extent).astype(np.float32)
