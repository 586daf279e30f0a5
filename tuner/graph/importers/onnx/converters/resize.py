"""Convert ONNX's Resize and Upsample, in all their modes. Start at `convert_resize`.

There are three implementations that give the same numbers. Relax's operator is fused behind others and stays in blocked
layout; it is used where its rules are ONNX's. The template's operator (vision_ops.resize) is used for other images. For
everything else, pixels are taken along one axis after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from tuner.graph.ir.bindings import dtype_of, shape_of
from tuner.graph.ir.operators import emit_operator
from tuner.graph.ir.simplify import as_constant, constant
from vision_ops.resize import MODES, MOST_TAPS, Resize, ResizedAxis, Sampling, resize_table

_RELAX_RULES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_WHOLE = 1e-4  # of a pixel, by which a scaled size may miss the output's

Axes = dict[int, ResizedAxis]


def convert_resize(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Convert a Resize or an Upsample. With at most two operands, or with scales as an attribute, the node is an
    Upsample or the Resize of operator set 10.

    Raises ValueError if the shape, or the scales and sizes, are not known.
    """
    data, shape = inputs[0], shape_of(inputs[0])
    if shape is None or not prod(shape):
        raise ValueError("the sizes of what it resizes have to be known, and at least 1")
    old = len(inputs) <= 2
    sampling = _sampling(attrs, old)
    axes = _axes(shape, inputs, attrs, old)
    if not axes:
        return data
    images = len(shape) == 4 and set(axes) <= {2, 3}
    if images and all(_is_relaxs(axis, sampling) for axis in axes.values()):
        return _by_relax(data, shape, axes, sampling)
    tables = {at: resize_table(axis, sampling) for at, axis in axes.items()}
    few = all(len(pixels) == MODES[sampling.mode] <= MOST_TAPS for pixels, _ in tables.values())
    if images and len(axes) == 2 and few and dtype_of(data) == "float32" and sampling.rule != "tf_crop_and_resize":
        return _by_template(builder, data, shape, tables)
    return _by_taking(
        builder, data, axes, tables=tables, sampling=sampling, elsewhere=float(attrs.get("extrapolation_value", 0.0))
    )


def _sampling(attrs: Mapping[str, Any], old: bool) -> Sampling:
    def text(name: str, default: str) -> str:
        return str(attrs.get(name, default.encode()).decode())

    if old:
        return Sampling(text("mode", "nearest").replace("bilinear", "linear"), "asymmetric", "simple")
    return Sampling(
        text("mode", "nearest"),
        text("coordinate_transformation_mode", "half_pixel"),
        text("nearest_mode", "round_prefer_floor"),
        float(attrs.get("cubic_coeff_a", -0.75)),
        bool(attrs.get("antialias", 0)),
        bool(attrs.get("exclude_outside", 0)),
    )


def _axes(shape: Sequence[int], inputs: Sequence[Any], attrs: Mapping[str, Any], old: bool) -> Axes:
    """Return how each axis that changes is resized. Raises ValueError if scales and sizes are not constants."""
    operands = [None if value is None else constant(value) for value in [*inputs, None, None, None][:4]]
    crop, scales, sizes = (None, operands[1], None) if old else operands[1:]
    scales = np.array(attrs["scales"]) if "scales" in attrs else scales
    named = [int(axis) % len(shape) for axis in attrs.get("axes", range(len(shape)))]
    if scales is not None and scales.size:
        factors = scales.astype(np.float32)
        outs = [int(np.float32(shape[at]) * factor) for at, factor in zip(named, factors, strict=True)]
    elif sizes is not None and sizes.size:
        outs, factors = _by_sizes([shape[at] for at in named], sizes, attrs)
    else:
        raise ValueError("its scales or sizes have to be constants")
    if min(outs) < 1:
        raise ValueError(f"sizes of {outs} are none")
    corners = [0.0] * len(named) + [1.0] * len(named) if crop is None or not crop.size else crop.tolist()
    found = {
        at: ResizedAxis(shape[at], out, float(factor), (corners[i], corners[i + len(named)]))
        for i, (at, out, factor) in enumerate(zip(named, outs, factors, strict=True))
    }
    return {at: a for at, a in found.items() if a.out != a.size or a.scale != 1 or a.crop != (0.0, 1.0)}


def _by_sizes(given: Sequence[int], sizes: np.ndarray, attrs: Mapping[str, Any]) -> tuple[list[int], np.ndarray]:
    """Return the resulting sizes and their scales."""
    factors = sizes.astype(np.float32) / np.array(given, np.float32)
    policy = attrs.get("keep_aspect_ratio_policy", b"stretch").decode()
    if policy == "stretch":
        return [int(size) for size in sizes], factors
    one = factors.min() if policy == "not_larger" else factors.max()
    return [int(np.floor(one * np.float32(size) + np.float32(0.5))) for size in given], np.full(len(given), one)


def _is_relaxs(axis: ResizedAxis, sampling: Sampling) -> bool:
    """Return whether Relax's operator, which knows only sizes, does what ONNX wants for an axis."""
    if sampling.rule not in _RELAX_RULES or sampling.antialias or sampling.exclude_outside:
        return False
    if sampling.mode == "nearest":
        # At other scales a position may be between two pixels, where compilers and devices round differently.
        return axis.scale >= 1 and float(axis.scale).is_integer()
    if sampling.rule == "align_corners":
        return axis.out > 1
    return abs(axis.size * axis.scale - axis.out) <= _WHOLE


def _by_relax(data: Any, shape: Sequence[int], axes: Axes, sampling: Sampling) -> Any:
    return relax.op.image.resize2d(
        data,
        size=relax.ShapeExpr([axes[at].out if at in axes else shape[at] for at in (2, 3)]),
        roi=[0.0] * 4,
        layout="NCHW",
        method="nearest_neighbor" if sampling.mode == "nearest" else sampling.mode,
        coordinate_transformation_mode=sampling.rule,
        rounding_method="floor" if sampling.rounding == "simple" else sampling.rounding,
        cubic_alpha=sampling.cubic,
    )


def _by_template(
    builder: relax.BlockBuilder, data: Any, shape: Sequence[int], tables: Mapping[int, tuple[np.ndarray, np.ndarray]]
) -> Any:
    (rows, _), (columns, _) = tables[2], tables[3]
    out = rows.shape[1], columns.shape[1]
    resized = Resize(shape[0] * shape[1], shape[2], shape[3], 1, *out, len(rows))
    flat = builder.emit(relax.op.reshape(data, (resized.outer, *shape[2:], 1)))
    operands = [as_constant(table) for at in (2, 3) for table in tables[at]]
    (found,) = emit_operator(builder, resized.workload(), [flat, *operands])
    return relax.op.reshape(found, (*shape[:2], *out))


def _by_taking(
    builder: relax.BlockBuilder,
    data: Any,
    axes: Axes,
    *,
    tables: Mapping[int, tuple[np.ndarray, np.ndarray]],
    sampling: Sampling,
    elsewhere: float,
) -> Any:
    """Sum pixels along one axis after the other. `elsewhere` is the value outside of a crop."""
    emit, dtype, rank = builder.emit, str(dtype_of(data)), len(data.ty.shape)
    weighted = sampling.mode != "nearest"
    value = emit(relax.op.astype(data, "float32")) if weighted and dtype != "float32" else data
    outside = np.zeros((1,) * rank, np.bool_)
    for at, axis in axes.items():
        wide = [-1 if i == at else 1 for i in range(rank)]
        outside = outside | axis.outside(sampling.rule).reshape(wide)
        total = None
        for pixels, weights in zip(*tables[at], strict=True):
            if weighted and not weights.any():
                continue
            part = emit(relax.op.take(value, as_constant(pixels), at, mode="clip"))
            part = emit(relax.op.multiply(part, as_constant(weights.reshape(wide)))) if weighted else part
            total = part if total is None else emit(relax.op.add(total, part))
        value = total
    if outside.any():
        value = emit(relax.op.where(as_constant(outside), relax.const(elsewhere, value.ty.dtype), value))
    return relax.op.astype(value, dtype) if weighted and dtype != "float32" else value
