"""Resized images: every result is a weighted sum of the same few pixels of a row and of a column.

Which ones, and by what weights, follows from sizes and scales alone, so that a table for each axis is an input
(`resize_table`), and every rule for coordinates and every interpolation is the same kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm.tirx.script import builder as T

from templates.operator import Operator, TensorSpec, View
from templates.space import Values
from tuning_db.record import Workload
from vision_ops.decoding import number
from vision_ops.kernels import Cells, Emitter, held, inside, own
from vision_ops.runs import PLACES, RunTemplate, each_run
from vision_ops.sweeps import Rows

MODES = {"nearest": 1, "linear": 2, "cubic": 4}  # taps along an axis
RULES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_MOST_TAPS = 8


@dataclass(frozen=True)
class Resize(View):
    """The inputs are the images (outer, height, width, inner) and for each axis a table of pixels (taps, out) and of
    weights (taps, out), rows first; the output is (outer, out_height, out_width, inner). `inner` is 1 for images of
    separate channels, the block for blocked ones."""

    op = "resize"

    outer: int
    height: int
    width: int
    inner: int
    out_height: int
    out_width: int
    taps: int = 2

    def __post_init__(self) -> None:
        if min(self.outer, self.height, self.width, self.inner, self.out_height, self.out_width) < 1:
            raise ValueError(f"resize: sizes are positive: {self}")
        if not 1 <= self.taps <= _MOST_TAPS:
            raise ValueError(f"resize: from 1 to {_MOST_TAPS} taps along an axis, not {self.taps}")

    @property
    def rows(self) -> Rows:
        return Rows(self.outer * self.out_height, self.out_width)


def resize_table(
    size: int, out: int, scale: float, mode: str, rule: str, rounding: str = "round_prefer_floor", cubic: float = -0.75
) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (taps, out) and weights (taps, out) of an axis of `size` pixels, as ONNX's Resize has them; what lies
    outside is the nearest pixel. `scale`: of the result to the image (align_corners has none: `out` says), `cubic`: the
    kernel's coefficient. Raises ValueError for rules that are not known."""
    if mode not in MODES or rule not in RULES or rounding not in ROUNDINGS:
        raise ValueError(f"resize: no such rule: {mode}, {rule}, {rounding}")
    at = _coordinates(size, out, scale, rule)
    if mode == "nearest":
        pixels, weights = _rounded(at, rounding)[None], np.ones((1, out))
    else:
        low = np.floor(at)
        taps = np.arange(MODES[mode])[:, None] - (MODES[mode] // 2 - 1)
        pixels, weights = low + taps, _weights(at - low, mode, cubic)
    return np.clip(pixels, 0, size - 1).astype(np.int32), weights.astype(np.float32)


def _coordinates(size: int, out: int, scale: float, rule: str) -> np.ndarray:
    """Where each result lies in the image, in pixels."""
    x = np.arange(out, dtype=np.float64)
    if rule == "align_corners":
        return x * (size - 1) / (out - 1) if out > 1 else x
    if rule == "asymmetric":
        return x / scale
    if rule == "pytorch_half_pixel" and out == 1:
        return x
    return (x + 0.5) / scale - 0.5


def _rounded(at: np.ndarray, rounding: str) -> np.ndarray:
    shift = {"round_prefer_floor": -0.5, "round_prefer_ceil": 0.5}.get(rounding, 0.0)
    found: np.ndarray = np.ceil(at + shift) if rounding in ("ceil", "round_prefer_floor") else np.floor(at + shift)
    return found


def _weights(part: np.ndarray, mode: str, a: float) -> np.ndarray:
    """(taps, out), for places `part` of a pixel behind the one before."""
    if mode == "linear":
        return np.stack([1 - part, part])
    near, far = np.stack([part, 1 - part]), np.stack([1 + part, 2 - part])
    inner = ((a + 2) * near - (a + 3)) * near**2 + 1
    outer = ((a * far - 5 * a) * far + 8 * a) * far - 4 * a
    return np.stack([outer[0], inner[0], inner[1], outer[1]])


class ResizeOperator(Operator):
    """`Resize` with its reference in NumPy."""

    view = Resize

    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        image = Resize.of(workload)
        return (
            TensorSpec("data", (image.outer, image.height, image.width, image.inner), "float32"),
            TensorSpec("rows", (image.taps, image.out_height), "int32"),
            TensorSpec("row_weights", (image.taps, image.out_height), "float32"),
            TensorSpec("columns", (image.taps, image.out_width), "int32"),
            TensorSpec("column_weights", (image.taps, image.out_width), "float32"),
        )

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        image = Resize.of(workload)
        return (TensorSpec("out", (image.outer, image.out_height, image.out_width, image.inner), "float32"),)

    def random_inputs(self, workload: Workload, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Neighbouring pixels, as interpolation has them."""
        image = Resize.of(workload)
        tables = []
        for size, out in ((image.height, image.out_height), (image.width, image.out_width)):
            first = np.arange(out) * size // out
            pixels = np.clip(first + np.arange(image.taps)[:, None], 0, size - 1).astype(np.int32)
            tables += [pixels, rng.random((image.taps, out), np.float32)]
        return rng.standard_normal((image.outer, image.height, image.width, image.inner), np.float32), *tables

    def reference(self, workload: Workload, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        image = Resize.of(workload)
        data, rows, row_weights, columns, column_weights = inputs
        wide = data.astype(np.float64)
        rows, columns = np.clip(rows, 0, image.height - 1), np.clip(columns, 0, image.width - 1)
        high = sum(wide[:, r] * w[:, None, None] for r, w in zip(rows, row_weights.astype(np.float64), strict=True))
        assert isinstance(high, np.ndarray)
        weights = column_weights.astype(np.float64)
        return (sum(high[:, :, c] * w[:, None] for c, w in zip(columns, weights, strict=True)),)


@dataclass(frozen=True)
class _Body:
    image: Resize
    emitter: Emitter
    v: Values

    def __call__(
        self, data: Cells, rows: Cells, row_weights: Cells, columns: Cells, column_weights: Cells, out: Cells
    ) -> None:
        image = self.image
        with each_run(image.rows, self.emitter, self.v) as run:
            outer, y = held(run.row // image.out_height), held(run.row % image.out_height)
            high = [(inside(rows[tap, y], image.height), held(row_weights[tap, y])) for tap in range(image.taps)]
            with run.each() as (_, x):
                wide = [
                    (inside(columns[tap, x], image.width), held(column_weights[tap, x])) for tap in range(image.taps)
                ]
                total = own("float32")
                with T.serial(0, image.inner) as lane:
                    total[0] = number(0.0)
                    for row, row_weight in high:
                        for column, weight in wide:
                            total[0] = total[0] + data[outer, row, column, lane] * (row_weight * weight)
                    out[outer, y, x, lane] = total[0]


TEMPLATE = RunTemplate(ResizeOperator(), _Body, PLACES)
