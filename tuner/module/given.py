"""Check the arrays that somebody gives a network as its inputs. Start at `checked_inputs`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tuner.errors import BadInput
from tuner.tensors import TensorInfo


def checked_inputs(
    tensors: Iterable[TensorInfo], inputs: Mapping[str, Any], *, taker: str = "module"
) -> dict[str, np.ndarray]:
    """Return the inputs as arrays, in the order of `tensors`, which describe them. `taker` says what takes them.

    Raises BadInput naming an input that is missing, unknown, or has another shape or dtype.
    """
    wanted = tuple(tensors)
    check_names(wanted, inputs, taker=taker)
    return {t.name: checked_array(t, np.dtype(t.dtype), inputs[t.name], taker=taker) for t in wanted}


def check_names(tensors: Iterable[TensorInfo], inputs: Mapping[str, Any], *, taker: str = "module") -> None:
    """Raise BadInput naming an input that is unknown or missing."""
    known = {t.name: t for t in tensors}
    unknown = sorted(inputs.keys() - known.keys())
    if unknown:
        raise BadInput(f"unknown input {unknown[0]!r}: the {taker} takes {', '.join(map(repr, known))}")
    for name, info in known.items():
        if name not in inputs:
            raise BadInput(f"input {name!r} is missing: shape {info.shape}, dtype {info.dtype}")


def checked_array(info: TensorInfo, dtype: np.dtype, value: Any, *, taker: str = "module") -> np.ndarray:
    """Return a value as the array of the input that `info` describes, whose type is `dtype`. Raises BadInput if the
    value has another shape or dtype, or cannot be read as an array."""
    name, shape = info.name, info.shape
    if not isinstance(value, np.ndarray):
        value = _array_of(name, value)
    if value.shape != shape:
        raise BadInput(f"input {name!r} has shape {value.shape}, the {taker} takes {shape}")
    if value.dtype != dtype:
        raise BadInput(f"input {name!r} has dtype {value.dtype}, the {taker} takes {info.dtype}: convert it")
    return value


def _array_of(name: str, value: Any) -> np.ndarray:
    if not hasattr(value, "__dlpack__"):
        raise BadInput(f"input {name!r} is a {type(value).__name__}, not a NumPy array or a DLPack tensor")
    try:
        return np.from_dlpack(value)
    except (RuntimeError, BufferError, TypeError) as error:
        raise BadInput(f"input {name!r} cannot be read: {error}") from error
