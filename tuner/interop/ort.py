"""Runs a built module between onnxruntime's sessions. It needs onnxruntime. Start at `ort_step`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tuner.errors import BadInput
from tuner.module import Module

Step = Callable[[Mapping[str, Any]], dict[str, Any]]


def ort_step(module: Module) -> Step:
    """Return a function from named OrtValues to named OrtValues, in CPU memory that is not copied in or out.

    It takes what one session bound as its outputs, and its results may be bound as another session's inputs. It raises
    BadInput as the module's call does, and for a value in another device's memory.
    """
    import onnxruntime

    def step(values: Mapping[str, Any]) -> dict[str, Any]:
        arrays = {name: _array(name, value) for name, value in values.items()}
        results = module.in_place(arrays)
        return {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in results.items()}

    return step


def _array(name: str, value: Any) -> np.ndarray:
    """Return a view of an OrtValue's memory. The caller must keep the OrtValue alive."""
    if not hasattr(value, "data_ptr"):
        raise BadInput(f"input {name!r} is a {type(value).__name__}, not an OrtValue")
    if value.device_name() != "cpu":
        raise BadInput(f"input {name!r} is in the memory of {value.device_name()}, not of the CPU")
    shape, dtype = tuple(value.shape()), _dtype(name, value)
    count = int(np.prod(shape))
    held = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(value.data_ptr())
    return np.ctypeslib.as_array(held).view(dtype).reshape(shape)


def _dtype(name: str, value: Any) -> np.dtype:
    kind = value.data_type().removeprefix("tensor(").removesuffix(")")
    try:
        return np.dtype({"float": "float32", "double": "float64"}.get(kind, kind))
    except TypeError as error:
        raise BadInput(f"input {name!r} has the type {value.data_type()}, which NumPy has not") from error
