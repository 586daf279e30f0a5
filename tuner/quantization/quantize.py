"""Quantise a network: calibrate it on some samples, and choose what is computed in integers by others. Start at
`quantize`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tuner.errors import BadInput
from tuner.quantization.calibration import Calibration, value_ranges
from tuner.quantization.choosing import Bounds, Choice, choose
from tuner.quantization.judging import Judge
from tuner.quantization.prepare import Prepared
from tuner.quantization.samples import Samples

_HELD_OUT = 4  # one sample in so many is not calibrated with: results are judged on it


@dataclass(frozen=True)
class Wanted:
    """What a network is quantised with. `labels` are the right classes of the samples, (samples, rows), if they are
    known. `curve` is the number of variants to measure besides those that the bounds need."""

    calibration: Calibration = field(default_factory=Calibration)
    bounds: Bounds = field(default_factory=Bounds)
    labels: np.ndarray | None = None
    curve: int = 0


@dataclass(frozen=True)
class Quantized:
    """What was chosen, and the numbers of samples that were calibrated with and judged on. `classes` names the output
    with one number for each class, if there is one."""

    choice: Choice
    calibrated: int
    judged: int
    classes: str | None


def quantize(prepared: Prepared, samples: Samples, wanted: Wanted, *, scratch: Path) -> Quantized:
    """Quantise a prepared network. One sample in four is held out, and what quantising costs is measured on these.

    Temporary files go to the folder `scratch`.

    Raises BadInput for samples that do not fit, for bounds that the network's outputs say nothing about, or that no
    quantised network keeps.
    """
    used, held = _split(len(samples))
    labels = None if wanted.labels is None else wanted.labels[held]
    judge = Judge(prepared.model, samples.chosen(held), labels, scratch=scratch)
    if judge.classes is None and (wanted.bounds.max_drop is not None or labels is not None):
        raise BadInput(
            "the network has no output with one number for each class, (rows, classes), so --max-drop and --labels say "
            "nothing of it: bound its SQNR with --min-sqnr"
        )
    ranges = value_ranges(prepared.model, samples.chosen(used), wanted.calibration, scratch=scratch)
    choice = choose(prepared.model, ranges, judge, wanted.bounds, curve=wanted.curve)
    return Quantized(choice, len(used), len(held), judge.classes)


def _split(count: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the indices of the samples to calibrate with and of those to judge on: every fourth one, or the last of
    less than four, or a single one for both."""
    if count == 1:
        return [0], [0]
    held = [index for index in range(count) if index % _HELD_OUT == _HELD_OUT - 1] or [count - 1]
    return [index for index in range(count) if index not in set(held)], held
