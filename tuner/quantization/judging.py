"""Measure how far the results of a quantised network are off those of the float one. Start at `Judge`.

The signal to quantisation noise ratio (SQNR) of an output is the sum of its squares over the sum of the squared errors,
in decibels. An output with three axes or more is measured for each entry of its second axis, such as a class or a
coordinate, and the mean of their decibels counts: large coordinates would hide what became of small scores. The SQNR of
a network is that of its worst output.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from tuner.errors import BadInput
from tuner.module import OnnxReference
from tuner.quantization.samples import Sample, Samples

MOST_DECIBELS = 100.0  # and more count as this: float32 itself rounds away as much
_KEPT_BYTES = 1 << 28  # of the float network's results; more are computed again each time

Outputs = Mapping[str, np.ndarray]
Infer = Callable[[Sample], Outputs]


@dataclass(frozen=True)
class Quality:
    """How good a network is on some samples. `sqnr` is in decibels. `top1` is the share of the samples, in per cent,
    whose largest class is right, or that of the float network where there are no labels. It is None if the network has
    no output with one number for each class."""

    sqnr: float
    top1: float | None = None


class Judge:
    """Compares networks with the float one on the same samples. `classes` names the output with one number for each
    class, or is None. `labels` are the right classes, (samples, rows), if they are known.

    Raises BadInput for a network without an output of real numbers of a fixed shape.
    """

    def __init__(self, model: onnx.ModelProto, samples: Samples, labels: np.ndarray | None, *, scratch: Path) -> None:
        self._samples = samples
        self.labels = labels
        self._scratch = scratch
        self._infer = self.open(model)
        self._kept: dict[int, Outputs] = {}
        self._kept_bytes = 0
        first = self._expected(0)
        self._outputs = [
            name for name, value in first.items() if np.issubdtype(value.dtype, np.floating) and value.size
        ]
        if not self._outputs:
            raise BadInput("the network has no output of real numbers, by which quantised ones could be judged")
        self.classes = next((name for name in self._outputs if _scores(first[name]) is not None), None)

    def __len__(self) -> int:
        return len(self._samples)

    def open(self, model: onnx.ModelProto) -> Infer:
        """Return a function that runs a model in onnxruntime, without optimisations: its own kernels of integers may
        saturate, depending on the processor. Raises BadInput if it cannot be run."""
        with tempfile.NamedTemporaryFile(dir=self._scratch, suffix=".onnx") as file:
            file.write(model.SerializeToString())
            file.flush()
            return OnnxReference(file.name)

    def quality(self, infer: Infer, indices: Sequence[int] | None = None) -> Quality:
        """Return the quality of a network on the samples with these indices, or on all."""
        chosen = range(len(self._samples)) if indices is None else indices
        ratios = {name: _Ratio() for name in self._outputs}
        right = []
        for index in chosen:
            expected, found = self._expected(index), infer(self._samples[index])
            for name, ratio in ratios.items():
                ratio.add(np.asarray(expected[name]), np.asarray(found[name]))
            if self.classes is not None:
                right.append(self._is_right(index, expected[self.classes], found[self.classes]))
        top1 = 100.0 * float(np.mean(right)) if right else None
        return Quality(min(ratio.decibels for ratio in ratios.values()), top1)

    def of_float(self) -> Quality:
        """Return the quality of the float network itself."""
        return self.quality(self._infer) if self.labels is not None else Quality(MOST_DECIBELS, self._all_agree())

    def _all_agree(self) -> float | None:
        return None if self.classes is None else 100.0

    def _is_right(self, index: int, expected: np.ndarray, found: np.ndarray) -> np.ndarray:
        """Tell of each row whether its largest class is the right one."""
        scores, known = _scores(found), _scores(expected)
        if known is None or scores is None or scores.shape != known.shape:
            return np.zeros(1, bool)
        wanted = known.argmax(1) if self.labels is None else self.labels[index]
        return np.asarray(scores.argmax(1) == wanted).reshape(-1)

    def _expected(self, index: int) -> Outputs:
        """Return what the float network computes of a sample."""
        if index in self._kept:
            return self._kept[index]
        outputs = self._infer(self._samples[index])
        size = sum(np.asarray(value).nbytes for value in outputs.values())
        if self._kept_bytes + size <= _KEPT_BYTES:
            self._kept[index] = outputs
            self._kept_bytes += size
        return outputs


class _Ratio:
    """Adds up the squares of an output and of its errors, for each entry of its second axis."""

    def __init__(self) -> None:
        self._signal: np.ndarray | float = 0.0
        self._noise: np.ndarray | float = 0.0

    def add(self, expected: np.ndarray, found: np.ndarray) -> None:
        """Add a result. Infinite numbers do not count, nor do results of another shape than before. A result of
        another shape than it should have, and numbers that should be finite, count as wholly wrong."""
        exact = np.where(np.isfinite(expected), expected, 0).astype(np.float64)
        wrong = exact
        if found.shape == expected.shape:
            wrong = np.where(np.isfinite(expected) & np.isfinite(found), exact - np.nan_to_num(found), exact)
        signal, noise = _by_channel(exact), _by_channel(wrong)
        if np.shape(self._signal) in ((), signal.shape):
            self._signal, self._noise = self._signal + signal, self._noise + noise

    @property
    def decibels(self) -> float:
        signal, noise = np.atleast_1d(self._signal), np.atleast_1d(self._noise)
        with np.errstate(divide="ignore", invalid="ignore"):
            each = 10 * np.log10(signal / noise)
        each = np.where(noise == 0, MOST_DECIBELS, np.clip(np.nan_to_num(each), 0, MOST_DECIBELS))
        return float(each.mean()) if each.size else MOST_DECIBELS


def _by_channel(values: np.ndarray) -> np.ndarray:
    """Return the sums of squares for each entry of the second axis, or of all values if there are less than three."""
    squares = np.square(values)
    return squares.sum(axis=(0, *range(2, values.ndim))) if values.ndim > 2 else np.atleast_1d(squares.sum())


def _scores(output: np.ndarray) -> np.ndarray | None:
    """Return an output as (rows, classes) if it has one number for each of at least two classes, or None."""
    is_row = output.ndim >= 2 and output.shape[0] >= 1 and output.shape[1] >= 2 and output.size
    if not is_row or output.size != output.shape[0] * output.shape[1]:
        return None
    return output.reshape(output.shape[:2])
