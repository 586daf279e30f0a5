"""Resize images in blocked layout by TVM's expression, which supports such layouts. Start at `resize`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx, topi

from templates.template import Layout
from tuner.graph.lowering.emit import INDEX_DTYPE


def takes_one_pixel(attrs: Any) -> bool:
    """Return whether every result is a value of the input, of any type. Otherwise it is a weighted sum."""
    return str(attrs.method).startswith("nearest")


def resize(attrs: Any, shape: Sequence[int], size: Sequence[int], *, layout: Layout, dtype: str) -> tirx.PrimFunc:
    """Return the function that resizes data to `size` (height, width), where data and result are blocked. `attrs` are
    those of Relax's image.resize2d, and `shape` is that of the plain input."""
    data = te.placeholder(layout.shape(shape), name="data", dtype=dtype)
    out = topi.image.resize2d(
        data,
        list(attrs.roi),
        list(size),
        f"NCHW{layout.block}c",
        attrs.method,
        attrs.coordinate_transformation_mode,
        attrs.rounding_method,
        attrs.cubic_alpha,
        attrs.cubic_exclude,
        attrs.extrapolation_value,
    )
    return te.create_prim_func([data, out], index_dtype_override=INDEX_DTYPE)


def key_of(attrs: Any) -> tuple[str, ...]:
    """Return a key that is equal for attributes that resize alike."""
    names = ("roi", "method", "coordinate_transformation_mode", "rounding_method", "cubic_alpha", "cubic_exclude")
    return tuple(str(getattr(attrs, name)) for name in (*names, "extrapolation_value"))
