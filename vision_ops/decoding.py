"""Expressions that decode the outputs of detection heads, in kernels and in references."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from templates.kernels import Cells


def number(value: float) -> Any:
    """Return a float32 constant."""
    return tirx.const(value, "float32")


def clipped(value: Any, low: float, high: float) -> Any:
    """Clip a float32 value to two bounds."""
    return tirx.max(tirx.min(value, number(high)), number(low))


def sigmoid(value: Any) -> Any:
    """Compute the sigmoid of a float32 value."""
    return number(1.0) / (number(1.0) + tirx.exp(-value))


def store_corners(cells: Cells, at: tuple[Any, ...], corners: tuple[Any, Any, Any, Any]) -> None:
    """Write left, top, right and bottom into the last axis, at the indices `at` of the others."""
    for i, corner in enumerate(corners):
        cells[(*at, i)] = corner


def numpy_sigmoid(values: np.ndarray) -> np.ndarray:
    """Compute the sigmoid in float64."""
    with np.errstate(over="ignore"):
        out: np.ndarray = 1 / (1 + np.exp(-values.astype(np.float64)))
    return out


def numpy_corners(centre: np.ndarray, extent: np.ndarray) -> np.ndarray:
    """Convert centres and extents, (..., 2) each, to corners (..., 4)."""
    return np.concatenate([centre - extent / 2, centre + extent / 2], -1)


def random_anchors(rng: np.random.Generator, anchors: int, size: float) -> np.ndarray:
    """Draw the corners of anchor boxes around points in a square image of `size`: (anchors, 4)."""
    centre, extent = rng.random((anchors, 2)) * size, (0.05 + 0.3 * rng.random((anchors, 2))) * size
    return numpy_corners(centre, extent).astype(np.float32)
