"""Replace operators whose results onnx's reference evaluator has wrong. Start at `MENDED`.

- BatchNormalization 7 to 13: the evaluator normalises by the batch.
- Softmax, LogSoftmax and Hardmax before 13: they should go over all axes from a given one on, but do not.
- LRN: the evaluator handles only as many channels as there are images.
- ConvTranspose is wrong with several groups, and GlobalMaxPool unless it has two dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_batch_normalization import BatchNormalization_14

_ONE_AXIS_SINCE = 13


class BatchNormalization(BatchNormalization_14):  # type: ignore[misc]
    """Normalises by the batch only where the node asks for training."""

    op_domain = ""

    def _run(self, x: np.ndarray, *statistics: np.ndarray, **attributes: Any) -> tuple[Any, ...]:
        training = attributes.get("training_mode") or 0
        if training:
            return super()._run(x, *statistics, **attributes)
        scale, bias, mean, variance = (s.astype(np.float64).reshape(-1, *(1,) * (x.ndim - 2)) for s in statistics)
        epsilon = attributes.get("epsilon")
        deviation = np.sqrt(variance + (1e-5 if epsilon is None else epsilon))
        return ((scale * (x - mean) / deviation + bias).astype(x.dtype),)


def _softmax(rows: np.ndarray) -> np.ndarray:
    powers = np.exp(rows - rows.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def _log_softmax(rows: np.ndarray) -> np.ndarray:
    below = rows - rows.max(-1, keepdims=True)
    return np.asarray(below - np.log(np.exp(below).sum(-1, keepdims=True)))


def _hardmax(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.arange(rows.shape[-1]) == rows.argmax(-1, keepdims=True), np.float64)


def _along(name: str, compute: Callable[[np.ndarray], np.ndarray]) -> type:
    """Return the operator called `name`, which applies `compute` to each row. A row goes along one axis. Before
    operator set 13 it goes over all axes from `axis` on (from 1 on if the node does not say)."""

    def run(self: OpRun, x: np.ndarray, **_defaults: Any) -> tuple[Any, ...]:
        axis = next((attribute.i for attribute in self.onnx_node.attribute if attribute.name == "axis"), None)
        data = x.astype(np.float64)
        if self.run_params["opsets"][""] >= _ONE_AXIS_SINCE:
            at = -1 if axis is None else axis
            return (np.moveaxis(compute(np.moveaxis(data, at, -1)), -1, at).astype(x.dtype),)
        rows = math.prod(x.shape[: (1 if axis is None else axis) % x.ndim])
        return (compute(data.reshape(rows, -1)).reshape(x.shape).astype(x.dtype),)

    return type(name, (OpRun,), {"op_domain": "", "_run": run})


class LRN(OpRun):  # type: ignore[misc]
    """Normalises over channels, for images of any dimension."""

    op_domain = ""

    def _run(
        self,
        x: np.ndarray,
        alpha: float | None = None,
        beta: float | None = None,
        bias: float | None = None,
        size: int = 1,
    ) -> tuple[Any, ...]:
        alpha, beta, bias = (d if v is None else v for v, d in ((alpha, 1e-4), (beta, 0.75), (bias, 1.0)))
        before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
        squares = np.pad(x.astype(np.float64) ** 2, [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)])
        channels = x.shape[1]
        sums = sum(squares[:, i : i + channels] for i in range(size))
        return ((x / (bias + alpha / size * sums) ** beta).astype(x.dtype),)


class GlobalMaxPool(OpRun):  # type: ignore[misc]
    """Takes the largest value over all axes behind the channels."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[Any, ...]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class ConvTranspose(OpRun):  # type: ignore[misc]
    """Transposes convolutions of any dimension and any number of groups."""

    op_domain = ""

    def _run(self, x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None, **attributes: Any) -> tuple[Any, ...]:
        rank = x.ndim - 2
        strides, dilations = (attributes.get(name) or (1,) * rank for name in ("strides", "dilations"))
        whole = _scattered(x, w, attributes.get("group") or 1, strides=strides, dilations=dilations)
        begin, sizes = _window(x.shape[2:], whole.shape[2:], strides, attributes)
        out = np.zeros((*whole.shape[:2], *sizes))
        taken: list[Any] = [slice(f, min(f + s, e)) for f, s, e in zip(begin, sizes, whole.shape[2:], strict=True)]
        there: list[Any] = [slice(0, part.stop - part.start) for part in taken]
        out[(..., *there)] = whole[(..., *taken)]
        if b is not None:
            out += b.reshape(-1, *(1,) * rank)
        return (out.astype(x.dtype),)


def _window(
    given: Sequence[int], whole: Sequence[int], strides: Sequence[int], attributes: Mapping[str, Any]
) -> tuple[Sequence[int], Sequence[int]]:
    """Return where in the whole result the output begins, and its sizes."""
    rank, mode, wanted = len(given), attributes.get("auto_pad"), attributes.get("output_shape")
    more = attributes.get("output_padding") or (0,) * rank
    reach = [size + m for size, m in zip(whole, more, strict=True)]
    if wanted is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [min(size * stride, most) for size, stride, most in zip(given, strides, reach, strict=True)]
    if wanted is None:
        pads = attributes.get("pads") or (0,) * (2 * rank)
        return pads[:rank], [size - pads[i] - pads[i + rank] for i, size in enumerate(reach)]
    sizes = list(wanted)[-rank:]
    cut = [max(size - kept, 0) for size, kept in zip(reach, sizes, strict=True)]
    return [c // 2 if mode == "SAME_UPPER" else c - c // 2 for c in cut], sizes


def _scattered(
    x: np.ndarray, w: np.ndarray, groups: int, *, strides: Sequence[int], dilations: Sequence[int]
) -> np.ndarray:
    """Return the sums of all products at their positions, before anything is cut off, in float64."""
    images, channels, *sizes = x.shape
    _, features, *kernel = w.shape
    data = x.astype(np.float64).reshape(images, groups, channels // groups, -1)
    weight = w.astype(np.float64).reshape(groups, channels // groups, features, -1)
    axes = list(zip(sizes, strides, dilations, kernel, strict=True))
    out = np.zeros((images, groups, features, *((n - 1) * s + d * (k - 1) + 1 for n, s, d, k in axes)))
    for i, place in enumerate(np.ndindex(*kernel)):
        at: list[Any] = [slice(d * p, d * p + (n - 1) * s + 1, s) for (n, s, d, _), p in zip(axes, place, strict=True)]
        products = np.einsum("ngcp,gcm->ngmp", data, weight[..., i], optimize=True)
        out[(..., *at)] += products.reshape(images, groups, features, *sizes)
    return out.reshape(images, groups * features, *out.shape[3:])


_ROWS = {"Softmax": _softmax, "LogSoftmax": _log_softmax, "Hardmax": _hardmax}
MENDED = (BatchNormalization, *(_along(*item) for item in _ROWS.items()), LRN, GlobalMaxPool, ConvTranspose)
