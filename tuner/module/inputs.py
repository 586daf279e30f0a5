"""Inputs to run a network on: `random_inputs`, and to verify it on: `drawn_inputs`, from several distributions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from tuner.graph import TensorInfo

_Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def _sparse(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape) * (rng.random(shape) < 0.1)


USUAL = "normal"
# Inputs as they come: normalised, pixels, quiet sound, with a large mean, nearly all of them zero.
DISTRIBUTIONS: Mapping[str, _Draw] = {
    USUAL: lambda rng, shape: rng.standard_normal(shape),
    "pixels": lambda rng, shape: rng.integers(0, 256, shape).astype(np.float64),
    "small": lambda rng, shape: rng.standard_normal(shape) * 1e-3,
    "large mean": lambda rng, shape: rng.standard_normal(shape) + 100.0,
    "sparse": _sparse,
}


def random_inputs(tensors: Iterable[TensorInfo], seed: int) -> dict[str, np.ndarray]:
    """Inputs by name: standard normal for floating point; of integers whatever chooses an entry where they choose one
    (TensorInfo.below), the whole range of at most 16 bits elsewhere, and 0 or 1 for everything else."""
    return _drawn(tensors, USUAL, seed)


def drawn_inputs(
    tensors: Iterable[TensorInfo], seed: int, outputs: Iterable[TensorInfo] = ()
) -> tuple[dict[str, np.ndarray], str]:
    """As `random_inputs`, but floating point of one distribution after the other, from seed to seed; and its name.

    All are normal where an output has as many entries as the values say: scores that inputs of another size have made
    equal, or put at a threshold, would be chosen from by their rounding alone.
    """
    counted = any(t.count is not None for t in outputs)
    name = list(DISTRIBUTIONS)[0 if counted else seed % len(DISTRIBUTIONS)]
    return _drawn(tensors, name, seed), name


def _drawn(tensors: Iterable[TensorInfo], distribution: str, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {t.name: _array(t, DISTRIBUTIONS[distribution], rng) for t in tensors}


def _array(tensor: TensorInfo, draw: _Draw, rng: np.random.Generator) -> np.ndarray:
    kind = np.dtype(tensor.dtype)
    if tensor.below is not None:
        return rng.integers(0, tensor.below, tensor.shape).astype(kind)
    if kind.kind in "iu" and kind.itemsize <= 2:
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max + 1, tensor.shape).astype(kind)
    if kind.kind in "iub":
        return rng.integers(0, 2, tensor.shape).astype(kind)
    return draw(rng, tensor.shape).astype(kind)
