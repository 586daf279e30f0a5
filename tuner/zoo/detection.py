"""Adds what detectors have behind their heads, in ONNX: the boxes and scores of all positions, and non-maximum
suppression. Start at `detections`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from tuner.zoo.builder import GraphBuilder

KEPT_PER_CLASS = 100
OVERLAP = 0.45
THRESHOLD = 0.01


def ints(b: GraphBuilder, *values: int) -> str:
    """Add a vector of int64 constants and return its name."""
    return b.constant(np.array(values, np.int64))


def floats(b: GraphBuilder, values: float | np.ndarray) -> str:
    """Add a float32 constant and return its name."""
    return b.constant(np.asarray(values, np.float32))


def columns(b: GraphBuilder, x: str, begin: int, end: int) -> str:
    """Return a slice of the last axis."""
    return b.node("Slice", [x, ints(b, begin), ints(b, end), ints(b, -1)])


def rows(b: GraphBuilder, x: str, batch: int, length: int) -> str:
    """Return a head's result (batch, places * length, height, width) as (batch, all places, length)."""
    moved = b.node("Transpose", [x], perm=[0, 2, 3, 1])
    return b.node("Reshape", [moved, ints(b, batch, -1, length)])


def joined(b: GraphBuilder, values: Sequence[str], axis: int) -> str:
    """Concatenate values along an axis."""
    return b.node("Concat", values, axis=axis)


def corners(b: GraphBuilder, centre: str, extent: str) -> str:
    """Return the corners (x1, y1, x2, y2) of boxes that are given as centres and extents, (..., 2) each."""
    half = b.node("Mul", [extent, floats(b, 0.5)])
    return joined(b, [b.node("Sub", [centre, half]), b.node("Add", [centre, half])], -1)


def detections(b: GraphBuilder, boxes: str, scores: str) -> tuple[str, str, str]:
    """Return the boxes (n, 4) that are kept of `boxes` (batch, all, 4) by `scores` (batch, classes, all), their scores
    (n, 1), and the image and the class of each, as numbers (n, 2)."""
    limits = ints(b, KEPT_PER_CLASS), floats(b, np.array([OVERLAP])), floats(b, np.array([THRESHOLD]))
    kept = b.node("NonMaxSuppression", [boxes, scores, *limits])
    labels = b.node("Cast", [b.node("Gather", [kept, ints(b, 0, 1)], axis=1)], to=TensorProto.FLOAT)
    found = b.node("GatherND", [boxes, b.node("Gather", [kept, ints(b, 0, 2)], axis=1)])
    best = b.node("Unsqueeze", [b.node("GatherND", [scores, kept]), ints(b, 1)])
    return found, best, labels
