"""Draw inputs to run a network on (`random_inputs`), and inputs of several distributions to verify it on
(`drawn_inputs`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from tuner.tensors import TensorInfo

_Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def _sparse(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape) * (rng.random(shape) < 0.1)


USUAL = "normal"
# Distributions that occur in practice: normalised values, pixels, quiet sound, values with a large mean, and values
# nearly all of which are zero.
DISTRIBUTIONS: Mapping[str, _Draw] = {
    USUAL: lambda rng, shape: rng.standard_normal(shape),
    "pixels": lambda rng, shape: rng.integers(0, 256, shape).astype(np.float64),
    "small": lambda rng, shape: rng.standard_normal(shape) * 1e-3,
    "large mean": lambda rng, shape: rng.standard_normal(shape) + 100.0,
    "sparse": _sparse,
}


def random_inputs(tensors: Iterable[TensorInfo], seed: int) -> dict[str, np.ndarray]:
    """Return random inputs by name. Floating-point inputs are standard normal. Integers that choose one of several
    entries stay below the number of entries (TensorInfo.below). Other integers of at most 16 bits cover their whole
    range, and everything else is 0 or 1."""
    return _drawn(tensors, USUAL, seed)


def drawn_inputs(
    tensors: Iterable[TensorInfo], seed: int, outputs: Iterable[TensorInfo] = ()
) -> tuple[dict[str, np.ndarray], str]:
    """Return inputs as `random_inputs` does, and the name of the distribution of their floating-point values.
    Successive seeds use one distribution after the other.

    The distribution is always the normal one if the number of an output's entries depends on the values. Inputs of
    another magnitude would make scores equal, or put them at a threshold, so that rounding alone would choose between
    them.
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
