"""Align rows of detections before they are compared, since rows with nearly equal scores may have changed places. Start
at `in_order_of`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from tuner.tensors import TensorInfo

# Rows whose scores are equal but for rounding may come in any order. Rows that are more than this many positions apart
# are not matched: the order is then really another one.
REACH = 16


def in_order_of(
    wanted: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray], outputs: Sequence[TensorInfo], tolerance: float
) -> dict[str, np.ndarray]:
    """Return `found` with rows moved to where `wanted` has nearly the same rows. This concerns outputs that have a
    common count; their rows move together, by at most REACH positions. Rows are the same if they differ by at most
    `tolerance` of an output's largest value, in all of these outputs."""
    result = dict(found)
    groups: dict[tuple[int, int], list[str]] = defaultdict(list)
    for info in outputs:
        if info.count is not None:
            groups[info.count.result, info.count.axis].append(info.name)
    for (_, axis), names in groups.items():
        lengths = {array.shape[axis] for name in names for array in (wanted[name], found[name])}
        if len(lengths) == 1:
            scales = [np.abs(wanted[n]).max(initial=0.0) or 1.0 for n in names]
            rows = [
                np.concatenate([_rows(given[n], axis) / scale for n, scale in zip(names, scales, strict=True)], axis=1)
                for given in (wanted, found)
            ]
            order = _matched(rows[0], rows[1], tolerance)
            result.update((name, np.take(found[name], order, axis)) for name in names)
    return result


def _rows(array: np.ndarray, axis: int) -> np.ndarray:
    moved = np.moveaxis(array, axis, 0)
    return moved.reshape(len(moved), math.prod(moved.shape[1:])).astype(np.float64)


def _matched(wanted: np.ndarray, found: np.ndarray, tolerance: float) -> np.ndarray:
    """Return the index of a found row for every wanted row, using each index once. A wanted row keeps its own index
    where that row is near enough. Otherwise it gets the nearest of the rows around it that did not stay in place. What
    is left is assigned in order."""
    order = np.arange(len(wanted))
    off = np.flatnonzero(~(np.abs(wanted - found).max(axis=1, initial=0.0) <= tolerance))
    free = set(off.tolist())
    for i in off.tolist():
        around = [j for j in range(max(0, i - REACH), i + REACH + 1) if j in free]
        distances = [np.abs(wanted[i] - found[j]).max(initial=0.0) for j in around]
        if around and np.nanmin([*distances, np.inf]) <= tolerance:
            order[i] = around[int(np.nanargmin(distances))]
            free.discard(int(order[i]))
        else:
            order[i] = -1
    left = sorted(free)
    for i in np.flatnonzero(order < 0).tolist():
        order[i] = left.pop(0)
    return order
