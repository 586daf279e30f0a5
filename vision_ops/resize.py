"""The operator that resizes images. Every output pixel is a weighted sum of a few pixels along rows and columns.

Which pixels these are, and their weights, follows from sizes and scales alone. A table of them for each axis is an
input (`resize_table`), so that one kernel serves all rules for coordinates and all interpolations. Start at `Resize`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm.tirx.script import builder as T

from templates.kernels import Cells, Emitter, held, inside, own
from templates.operator import Operator, TensorSpec, View
from templates.space import Values
from tuning_db.record import Workload
from vision_ops.decoding import number
from vision_ops.runs import PLACES, RunTemplate, each_run
from vision_ops.sweeps import Rows

MODES = {"nearest": 1, "linear": 2, "cubic": 4}  # taps along an axis
RULES = (
    "half_pixel",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "half_pixel_symmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
# "simple" is the rule of ONNX's operator set 10: round up if the result is smaller, down if it is larger.
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")
MOST_TAPS = 8


@dataclass(frozen=True)
class Resize(View):
    """A workload that resizes images.

    The inputs are the images (outer, height, width, inner) and, for rows and then for columns, a table of pixels (taps,
    out) and one of weights (taps, out). The output is (outer, out_height, out_width, inner). `inner` is 1 if the
    channels are separate images, and the block if the layout is blocked. Raises ValueError for sizes that are not
    valid.
    """

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
        if not 1 <= self.taps <= MOST_TAPS:
            raise ValueError(f"resize: from 1 to {MOST_TAPS} taps along an axis, not {self.taps}")

    @property
    def rows(self) -> Rows:
        return Rows(self.outer * self.out_height, self.out_width)


@dataclass(frozen=True)
class Sampling:
    """The attributes of ONNX's Resize that determine the pixels of a result.

    `rule` is coordinate_transformation_mode, `rounding` is nearest_mode, and `cubic` is cubic_coeff_a. `mode`,
    `antialias` and `exclude_outside` are called so in ONNX. Raises ValueError for values that are not known.
    """

    mode: str = "nearest"
    rule: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES or self.rule not in RULES or self.rounding not in ROUNDINGS:
            raise ValueError(f"resize: no such rule: {self.mode}, {self.rule}, {self.rounding}")


@dataclass(frozen=True)
class ResizedAxis:
    """An axis of `size` pixels that is resized to `out` pixels.

    `scale` is the ratio of the result to the image that the model gives; the ratio of the sizes may differ from it.
    `crop` is the part of the image that is resized, from 0 to 1 (for tf_crop_and_resize).
    """

    size: int
    out: int
    scale: float
    crop: tuple[float, float] = (0.0, 1.0)

    def coordinates(self, rule: str) -> np.ndarray:
        """Compute where each result lies in the image, in pixels.

        The order of operations is onnxruntime's, in float32, because the rounding decides which pixel is the nearest.
        """
        x, size, out = np.arange(self.out, dtype=np.float32), np.float32(self.size), np.float32(self.out)
        half, scale = np.float32(0.5), np.float32(self.scale)
        if rule == "align_corners":
            return x * (size - 1) / (out - 1) if self.out > 1 else x
        if rule == "tf_crop_and_resize":
            begin, end = map(np.float32, self.crop)
            return (
                begin * (size - 1) + x * (end - begin) * (size - 1) / (out - 1)
                if self.out > 1
                else (half * (begin + end) * (size - 1) + x)
            )
        if rule == "asymmetric":
            return x / scale
        if rule == "tf_half_pixel_for_nn":
            return (x + half) / scale
        if rule == "pytorch_half_pixel" and self.out == 1:
            return x
        middle = (x + half) / scale - half
        if rule == "half_pixel_symmetric":
            return middle + size / 2 * (1 - out / (scale * size))
        return middle

    def outside(self, rule: str) -> np.ndarray:
        """Tell which results lie outside of the image. Only tf_crop_and_resize treats them differently."""
        at = self.coordinates(rule)
        return (at < 0) | (at > self.size - 1) if rule == "tf_crop_and_resize" else np.zeros(self.out, np.bool_)


def resize_table(axis: ResizedAxis, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Compute the tables of an axis: pixels (taps, out), int32, and weights (taps, out), float32.

    A pixel outside of the image is replaced by the nearest one inside.
    """
    at = axis.coordinates(sampling.rule)
    if sampling.mode == "nearest":
        pixels, weights = _rounded(at, sampling.rounding, axis.scale)[None], np.ones((1, axis.out))
    else:
        wide = at.astype(np.float64)
        reach = MODES[sampling.mode] // 2
        shrunk = min(axis.scale, 1.0) if sampling.antialias else 1.0
        begin = int(np.floor(-reach / shrunk)) + 1
        taps = np.arange(begin, 2 - begin)[:, None]
        pixels, weights = np.floor(wide) + taps, _weights((np.floor(wide) + taps - wide) * shrunk, sampling)
        if sampling.exclude_outside:
            weights = np.where((pixels >= 0) & (pixels < axis.size), weights, 0.0)
        weights = weights / weights.sum(0)
    return np.clip(pixels, 0, axis.size - 1).astype(np.int32), weights.astype(np.float32)


def _rounded(at: np.ndarray, rounding: str, scale: float) -> np.ndarray:
    if rounding == "simple":
        rounding = "ceil" if scale < 1 else "floor"
    shift = {"round_prefer_floor": -0.5, "round_prefer_ceil": 0.5}.get(rounding, 0.0)
    found: np.ndarray = np.ceil(at + shift) if rounding in ("ceil", "round_prefer_floor") else np.floor(at + shift)
    return found


def _weights(distance: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Return the weights of pixels at these distances from a result."""
    x, a = np.abs(distance), sampling.cubic
    if sampling.mode == "linear":
        return np.clip(1 - x, 0, 1)
    near, far = ((a + 2) * x - (a + 3)) * x**2 + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


class ResizeOperator(Operator):
    """The operator that `Resize` describes, with its reference in NumPy."""

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
        """Draw images and weights. The tables have neighbouring pixels, as those of an interpolation do."""
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


OPERATOR = ResizeOperator()
TEMPLATE = RunTemplate(OPERATOR, _Body, PLACES)
