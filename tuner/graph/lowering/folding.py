"""Sums, maxima, softmax and layer normalisation as TE stages that are computed as vectors. Start at `total`.

All take a tensor of shape (outer, terms, inner) and work along the terms. Partial results as wide as a vector are made
first, then these are folded in half until one is left.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from tvm import te, tirx

_WIDTH = 16  # numbers in the widest vectors
Read = Callable[[Any, Any, Any], Any]


class Fold(NamedTuple):
    """Describes how terms become one: `over` an axis of a stage, or `join` for two. A term may be taken twice if it is
    `idempotent`."""

    over: Callable[..., Any]
    join: Callable[[Any, Any], Any]
    idempotent: bool


_SUM = Fold(te.sum, operator.add, idempotent=False)
_MOST = Fold(te.max, tirx.max, idempotent=True)
_LEAST = Fold(te.min, tirx.min, idempotent=True)


def total(x: te.Tensor) -> te.Tensor:
    """Sum the terms, which gives (outer, inner)."""
    return _folded(lambda o, t, i: x[o, t, i], _sizes(x), _SUM)


def greatest(x: te.Tensor) -> te.Tensor:
    """Take the largest of the terms, which gives (outer, inner)."""
    return _folded(lambda o, t, i: x[o, t, i], _sizes(x), _MOST)


def least(x: te.Tensor) -> te.Tensor:
    """Take the smallest of the terms, which gives (outer, inner)."""
    return _folded(lambda o, t, i: x[o, t, i], _sizes(x), _LEAST)


def softmax(x: te.Tensor) -> te.Tensor:
    """Divide the powers of e by their sum."""
    powers = _powers(x, greatest(x))
    sums = total(powers)
    inverse = te.compute(sums.shape, lambda o, i: tirx.const(1.0, "float32") / sums[o, i], name="inverse")
    return te.compute(x.shape, lambda o, k, i: powers[o, k, i] * inverse[o, i], name="softmax")


def log_softmax(x: te.Tensor) -> te.Tensor:
    """Take the logarithm of what `softmax` computes."""
    most = greatest(x)
    sums = total(_powers(x, most))
    logs = te.compute(sums.shape, lambda o, i: tirx.log(sums[o, i]), name="logs")
    return te.compute(x.shape, lambda o, k, i: x[o, k, i] - most[o, i] - logs[o, i], name="log_softmax")


def layer_norm(x: te.Tensor, scale: te.Tensor, shift: te.Tensor, epsilon: float) -> te.Tensor:
    """Subtract the mean and divide by the standard deviation. `scale` and `shift` have one value for each term."""
    outer, _, inner = _sizes(x)
    mean = _mean(x)
    spread = _spread(x, mean)
    added = tirx.const(epsilon, "float32")
    inverse = te.compute((outer, inner), lambda o, i: tirx.rsqrt(spread[o, i] + added), name="inverse")
    return te.compute(
        x.shape,
        lambda o, k, i: (x[o, k, i] - mean[o, i]) * inverse[o, i] * scale[k] + shift[k],
        name="layer_norm",
    )


def variance(x: te.Tensor) -> te.Tensor:
    """Take the mean of the squares of what differs from the mean, which gives (outer, inner)."""
    return _spread(x, _mean(x))


def _mean(x: te.Tensor) -> te.Tensor:
    sums, count = total(x), tirx.const(float(int(x.shape[1])), "float32")
    return te.compute(sums.shape, lambda o, i: sums[o, i] / count, name="mean")


def _spread(x: te.Tensor, mean: te.Tensor) -> te.Tensor:
    def square(o: Any, t: Any, i: Any) -> Any:
        return (x[o, t, i] - mean[o, i]) * (x[o, t, i] - mean[o, i])

    sums, count = _folded(square, _sizes(x), _SUM), tirx.const(float(int(x.shape[1])), "float32")
    return te.compute(sums.shape, lambda o, i: sums[o, i] / count, name="spread")


def _sizes(x: te.Tensor) -> tuple[int, int, int]:
    outer, terms, inner = (int(size) for size in x.shape)
    return outer, terms, inner


def _powers(x: te.Tensor, most: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda o, k, i: tirx.exp(x[o, k, i] - most[o, i]), name="powers")


def _folded(read: Read, sizes: tuple[int, int, int], fold: Fold) -> te.Tensor:
    """Fold the terms into about as many partial results as each has terms, then fold these."""
    outer, terms, inner = sizes
    lanes = min(_WIDTH * max(1, round(math.sqrt(terms) / _WIDTH)), terms)
    if inner == 1:
        return _together(_vectors_of_row(read, outer, terms, lanes, fold), fold)
    whole, rest = divmod(terms, lanes)
    k, r = (te.reduce_axis((0, max(n, 1))) for n in (whole, rest))
    parts = te.compute(
        (outer, lanes, inner), lambda o, j, i: fold.over(read(o, j * whole + k, i), axis=k), name="parts"
    )
    folded = _together(parts, fold)
    if not rest:
        return folded
    last = te.compute((outer, inner), lambda o, i: fold.over(read(o, whole * lanes + r, i), axis=r), name="last")
    return te.compute((outer, inner), lambda o, i: fold.join(folded[o, i], last[o, i]), name="joined")


def _vectors_of_row(read: Read, outer: int, terms: int, lanes: int, fold: Fold) -> te.Tensor:
    """Fold the terms of rows lane by lane, as vectors that follow each other. The last one begins so early that it is
    whole, and leaves out what the one before has taken, unless a term may be taken twice."""
    whole, rest = divmod(terms, lanes)
    k = te.reduce_axis((0, whole + (rest > 0)))

    def term(o: Any, j: Any, i: Any) -> Any:
        if not rest:
            return read(o, k * lanes + j, i)
        value = read(o, tirx.min(k * lanes, terms - lanes) + j, i)
        if fold.idempotent:
            return value
        new = j >= k // whole * (lanes - rest)  # one comparison, as OpenCL has no vectors of booleans to combine
        return tirx.Select(new, value, tirx.const(0.0, "float32"))

    return te.compute((outer, lanes, 1), lambda o, j, i: fold.over(term(o, j, i), axis=k), name="parts")


def _together(parts: te.Tensor, fold: Fold) -> te.Tensor:
    """Fold partial results, in halves as long as their number is even and they are neighbours in memory."""
    outer, lanes, inner = _sizes(parts)
    while inner == 1 and lanes % 2 == 0:
        lanes //= 2
        parts = te.compute((outer, lanes, inner), _halves(parts, lanes, fold), name="half")
    if lanes == 1:
        return te.compute((outer, inner), lambda o, i: parts[o, 0, i], name="folded")
    v = te.reduce_axis((0, lanes))
    return te.compute((outer, inner), lambda o, i: fold.over(parts[o, v, i], axis=v), name="folded")


def _halves(parts: te.Tensor, lanes: int, fold: Fold) -> Read:
    return lambda o, j, i: fold.join(parts[o, j, i], parts[o, j + lanes, i])
