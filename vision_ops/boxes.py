"""Boxes, which kernels and references prepare and compare by intersection over union. Start at `prepared`.

A box is four values: two opposite corners (x, y, x, y) in any order, or the centre and the extents (x, y, width,
height). It does not matter which axis is called x. As in onnxruntime, a box without area suppresses nothing and is
suppressed by nothing. The same holds for a box with a NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from templates.kernels import Cells, held

FIELDS = 5  # values of a prepared box: least x, least y, greatest x, greatest y, area


@dataclass(frozen=True)
class Box:
    """A box that is prepared for comparisons. Its fields are expressions in kernels and arrays in references."""

    left: Any
    top: Any
    right: Any
    bottom: Any
    area: Any

    @property
    def fields(self) -> tuple[Any, ...]:
        return self.left, self.top, self.right, self.bottom, self.area


def prepared(raw: tuple[Any, Any, Any, Any], centre: bool) -> Box:
    """Prepare a box from its four values, in a kernel. They are centre and extents if `centre`, else corners."""
    a, b, c, d = (held(value) for value in raw)
    if centre:
        half = tirx.const(0.5, "float32")
        left, top, right, bottom = a - c * half, b - d * half, a + c * half, b + d * half
    else:
        left, top, right, bottom = tirx.min(a, c), tirx.min(b, d), tirx.max(a, c), tirx.max(b, d)
    sides = [held(value) for value in (left, top, right, bottom)]
    left, top, right, bottom = sides
    return Box(left, top, right, bottom, held((right - left) * (bottom - top)))


def stored(cells: Cells, row: Any, at: Any) -> Box:
    """Read a prepared box from cells (rows, FIELDS, positions)."""
    return Box(*(held(cells[row, field, at]) for field in range(FIELDS)))


def store(cells: Cells, row: Any, at: Any, box: Box) -> None:
    """Write a prepared box into cells (rows, FIELDS, positions)."""
    for field, value in enumerate(box.fields):
        cells[row, field, at] = value


def overlap(a: Box, b: Box, threshold: float) -> Any:
    """Return 1 if the intersection over the union exceeds the threshold, else 0. The code has no branch."""

    def true(condition: Any) -> Any:
        return condition.astype("int32")

    zero = tirx.const(0, "float32")
    width = held(tirx.min(a.right, b.right) - tirx.max(a.left, b.left))
    height = held(tirx.min(a.bottom, b.bottom) - tirx.max(a.top, b.top))
    common = held(width * height)
    union = held(a.area + b.area - common)
    overlapping = true(width > zero) & true(height > zero)
    proper = true(a.area > zero) & true(b.area > zero) & true(union > zero)
    return overlapping & proper & true(common / union > tirx.const(threshold, "float32"))


def numpy_prepared(raw: np.ndarray, centre: bool) -> Box:
    """Prepare boxes from an array (boxes, 4), for the reference, in float32."""
    a, b, c, d = raw.astype(np.float32).T
    if centre:
        half = np.float32(0.5)
        left, top, right, bottom = a - c * half, b - d * half, a + c * half, b + d * half
    else:
        left, top, right, bottom = np.minimum(a, c), np.minimum(b, d), np.maximum(a, c), np.maximum(b, d)
    with np.errstate(invalid="ignore"):
        return Box(left, top, right, bottom, (right - left) * (bottom - top))


def numpy_overlap(a: Box, b: Box, threshold: float) -> np.ndarray:
    """Tell where the intersection over the union exceeds the threshold, as `overlap` does, for the reference."""
    with np.errstate(all="ignore"):
        width = np.minimum(a.right, b.right) - np.maximum(a.left, b.left)
        height = np.minimum(a.bottom, b.bottom) - np.maximum(a.top, b.top)
        common = width * height
        union = a.area + b.area - common
        proper = (width > 0) & (height > 0) & (a.area > 0) & (b.area > 0) & (union > 0)
        return proper & (common / union > np.float32(threshold))
