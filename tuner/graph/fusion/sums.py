"""Find the numbers by which two quantised tensors are added, and the sum quantised, in two products and two sums. Start
at `sum_numbers`.

A file says: subtract each tensor's zero point, multiply by its scale, add, divide by the result's scale, and round to
the nearest step. Each of these rounds in float32. A product and a sum for each tensor take a third of the time, but
round elsewhere, so that a number near the middle of two steps may fall to the other one. There are 65,536 pairs of
bytes in all: numbers are taken only if each pair gives what the file says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

_BYTES = np.arange(256, dtype=np.float32)
_LAST = 255.0
_TRIED = 1000  # numbers near the exact ones
_SPACINGS = 4  # how far from the exact factors tried ones are, in steps of float32
_NEAR = 1e-3  # how near the middle of two steps a sum is that may fall to the other one
_SHIFT = 4e-5  # the most, in steps, by which the tried numbers move a sum


@dataclass(frozen=True)
class Step:
    """Says what a quantised tensor's values are as real numbers: the values less `zero`, times `scale`."""

    scale: float
    zero: float


Numbers = tuple[float, float, float]


def sum_numbers(one: Step, other: Step, result: Step, *, is_clipped: bool) -> Numbers | None:
    """Return a, b and c, for which a * value + (b * other value + c), rounded, are the steps that the sum of both
    tensors is quantised to, less the zero point. They are float32 values, and right whether or not a processor rounds
    between a product and a sum. Return None if none were found. `is_clipped` says that negative sums become 0."""
    first, second = (pair.reshape(-1) for pair in np.meshgrid(_BYTES, _BYTES, indexing="ij"))
    wanted = _as_written(first, second, (one, other, result), is_clipped=is_clipped)
    exact = one.scale / result.scale, other.scale / result.scale
    constant = -(one.zero * exact[0] + other.zero * exact[1])
    sums = first.astype(np.float64) * exact[0] + second.astype(np.float64) * exact[1] + constant
    near = np.abs(sums - np.floor(sums) - 0.5) < _NEAR
    if not np.isfinite(sums).all():
        return None
    for numbers in _candidates(exact, constant):
        found = (_computed(first[near], second[near], numbers, result, is_clipped=is_clipped, fused=f) for f in (0, 1))
        if all(np.array_equal(steps, wanted[near]) for steps in found):
            found = (_computed(first, second, numbers, result, is_clipped=is_clipped, fused=f) for f in (0, 1))
            return numbers if all(np.array_equal(steps, wanted) for steps in found) else None
    return None


def _candidates(exact: tuple[float, float], constant: float) -> Iterator[Numbers]:
    """Yield numbers near the exact ones, the nearest first."""
    rng = np.random.default_rng(0)
    nearest = [float(np.float32(number)) for number in exact]
    yield nearest[0], nearest[1], float(np.float32(constant))
    for _ in range(_TRIED):
        own = [n + int(rng.integers(-_SPACINGS, _SPACINGS + 1)) * float(np.spacing(np.float32(n))) for n in nearest]
        drift = sum((n - e) * _LAST / 2 for n, e in zip(own, exact, strict=True))
        yield own[0], own[1], float(np.float32(constant - drift + rng.uniform(-_SHIFT, _SHIFT)))


def _as_written(
    first: np.ndarray, second: np.ndarray, steps: tuple[Step, Step, Step], *, is_clipped: bool
) -> np.ndarray:
    """Compute the quantised sums as a file says."""
    scales, zeros = ([np.float32(getattr(step, name)) for step in steps] for name in ("scale", "zero"))
    sums = (first - zeros[0]) * scales[0] + (second - zeros[1]) * scales[1]
    return _quantised((np.maximum(sums, 0) if is_clipped else sums) / scales[2], steps[2])


def _computed(
    first: np.ndarray, second: np.ndarray, numbers: Numbers, result: Step, *, is_clipped: bool, fused: int
) -> np.ndarray:
    """Compute the quantised sums as an epilogue does. If `fused`, products are not rounded before they are added to."""
    wide = "float64" if fused else "float32"
    a, b, c = np.array(numbers, wide)
    behind = (second.astype(wide) * b + c).astype(np.float32)
    sums = (first.astype(wide) * a + behind.astype(wide)).astype(np.float32)
    return _quantised(np.maximum(sums, 0) if is_clipped else sums, result)


def _quantised(steps: np.ndarray, result: Step) -> np.ndarray:
    return np.clip(np.rint(steps) + np.float32(result.zero), 0, _LAST)
