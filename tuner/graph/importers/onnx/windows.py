"""Compute the padding of windows as numbers where an ONNX node only implies it. Start at `resolve_window`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

POOLS = ("AveragePool", "LpPool", "MaxPool")
WINDOWED = ("Conv", "ConvTranspose", *POOLS)

Attributes = dict[str, Any]
Sizes = Sequence[int]


def resolve_window(operator: str, shape: Sizes, weight: Sizes, attrs: Attributes) -> None:
    """Write into `attrs` the padding that follows from the shapes of the data and, for convolutions, of the weight.

    The paddings SAME_* and VALID become numbers. So does the padding by which a transposed convolution gets a given
    output shape. With numbers, the padding stays a part of the operator.
    """
    if operator not in WINDOWED:
        return
    if operator == "ConvTranspose":
        _resolve_transposed(shape[2:], weight[2:], attrs)
    else:
        dilated = operator == "Conv"  # onnxruntime pads a dilated pool as if it were not dilated
        _resolve_auto_pad(shape[2:], tuple(attrs.get("kernel_shape") or weight[2:]), attrs, dilated)


def _text(attrs: Attributes, name: str) -> str:
    return str(attrs.get(name, b"NOTSET").decode())


def _resolve_auto_pad(sizes: Sizes, kernel: Sizes, attrs: Attributes, dilated: bool) -> None:
    mode = _text(attrs, "auto_pad")
    if mode == "VALID":
        attrs["pads"] = (0,) * (2 * len(sizes))
        del attrs["auto_pad"]
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        return
    strides = attrs.get("strides", (1,) * len(sizes))
    dilations = attrs.get("dilations", (1,) * len(sizes)) if dilated else (1,) * len(sizes)
    before, after = [], []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((math.ceil(size / stride) - 1) * stride + dilation * (k - 1) + 1 - size, 0)
        small, large = total // 2, total - total // 2
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    attrs["pads"] = (*before, *after)
    del attrs["auto_pad"]


def _resolve_transposed(sizes: Sizes, kernel: Sizes, attrs: Attributes) -> None:
    """Write the padding of a transposed convolution whose output shape is given. What exceeds this shape is cut off,
    half on each side. If the shape is larger than everything that is written, zeros are added behind."""
    mode, rank = _text(attrs, "auto_pad"), len(sizes)
    strides, dilations, more = (
        attrs.get(name) or (default,) * rank
        for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    reach = [
        (size - 1) * stride + dilation * (k - 1) + 1 + m
        for size, stride, dilation, k, m in zip(sizes, strides, dilations, kernel, more, strict=True)
    ]
    if wanted := attrs.pop("output_shape", None):
        outs = list(wanted)[-rank:]
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        outs = [min(size * stride, most) for size, stride, most in zip(sizes, strides, reach, strict=True)]
    else:
        if mode == "VALID":
            attrs["pads"] = (0,) * (2 * rank)
            del attrs["auto_pad"]
        return
    cut = [max(most - out, 0) for most, out in zip(reach, outs, strict=True)]
    before = [c // 2 if mode == "SAME_UPPER" else c - c // 2 for c in cut]
    attrs["pads"] = (*before, *(c - b for c, b in zip(cut, before, strict=True)))
    attrs["output_padding"] = [m + max(out - most, 0) for m, out, most in zip(more, outs, reach, strict=True)]
    attrs.pop("auto_pad", None)
