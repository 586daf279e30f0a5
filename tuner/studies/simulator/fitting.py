"""Fits a device's roofline to what kernels took on it: peaks for each kind of operator, and an overhead that every
launch takes in addition. Start at `fit_kinds`.

Seconds are modelled as max(flop / peak, bytes / rate) + overhead (Williams, Waterman and Patterson, "Roofline", 2009,
with a launch). The device has one overhead, and each kind has a peak and a rate, as a depthwise convolution does not
reach what a dense one does. The fit has the least mean of |log(modelled / measured)|. Absolute values keep a few trials
that went wrong from moving it much, and logarithms make short kernels count as much as long ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tuner.errors import BadInput
from tuner.studies.networks import NetworkOperator
from tuner.studies.simulator.costs import Phase, Work
from tuner.studies.topology import DeviceSpec

LEAST_OF_KIND = 4  # samples that a kind needs for peaks of its own
FOLDS = 64  # with more samples, this many groups are left out in turn, not single samples
_CANDIDATES = 16  # rates tried first; then `_BETWEEN` in each gap beside the best one
_BETWEEN = 9
_OVERHEADS = 14
_PULL = 0.01  # weight that pulls a peak which the samples leave open towards the known one


class Sample(NamedTuple):
    """A kernel that was measured: its kind, its work and its seconds."""

    kind: str
    work: Work
    seconds: float


class Peaks(NamedTuple):
    """The flop per second and bytes per second that kernels reach."""

    flops: float
    bandwidth: float


class FitError(NamedTuple):
    """States how far a fit is off: the median and the 90th percentile of |modelled / measured - 1|.

    Each sample was left out of the fit that modelled it.
    """

    samples: int
    median: float
    high: float


@dataclass(frozen=True)
class FittedRoofline:
    """A roofline that is fitted to samples of a device.

    `peaks` are those of each kind with enough samples, and `general` those of all samples together, for the other
    kinds. `error` is that of all samples, `errors` that of each kind's.
    """

    device: str
    overhead: float
    general: Peaks
    peaks: Mapping[str, Peaks]
    error: FitError
    errors: Mapping[str, FitError]

    def seconds(self, kind: str, work: Work) -> float:
        return _seconds(self.peaks.get(kind, self.general), work, self.overhead)

    def text(self) -> str:
        """Describe the fit for a person, in one line."""
        kinds = ", ".join(f"{k} {e.median:.0%} ({e.samples})" for k, e in sorted(self.errors.items()))
        return (
            f"{self.device}: roofline of {self.error.samples} workloads, each left out in turn: median error "
            f"{self.error.median:.0%}, 90th percentile {self.error.high:.0%}; {kinds}"
        )


@dataclass(frozen=True)
class FittedCosts:
    """A cost model (`costs.CostModel`) that consists of fits, by the devices' names. Operators have the kinds of the
    samples."""

    fits: Mapping[str, FittedRoofline]

    def seconds(self, operator: NetworkOperator, phase: Phase, work: Work, share: float, device: DeviceSpec) -> float:
        """Return the modelled seconds of a part. Raises BadInput for a device without a fit."""
        if device.name not in self.fits:
            known = ", ".join(self.fits) or "none"
            raise BadInput(f"device {device.name!r}: no roofline was fitted for it (there is one for {known})")
        return self.fits[device.name].seconds(operator.kind, work)


def fit_kinds(samples: Sequence[Sample], device: DeviceSpec) -> FittedRoofline:
    """Fit the roofline of `device`, whose own peaks stand in for what the samples leave open.

    Raises BadInput where there are fewer than `LEAST_OF_KIND` samples, or one without work or time.
    """
    _check(samples, device)
    overhead, general, peaks = _fit(samples, device)
    away = np.abs(_left_out(samples, device) / np.array([s.seconds for s in samples]) - 1)
    kinds = dict.fromkeys(s.kind for s in samples)
    errors = {kind: _error(away[[s.kind == kind for s in samples]]) for kind in kinds}
    return FittedRoofline(device.name, overhead, general, peaks, _error(away), errors)


def left_out_ratios(samples: Sequence[Sample], device: DeviceSpec) -> dict[str, tuple[float, ...]]:
    """Return, for each kind, measured / modelled seconds, where each sample is modelled by a fit to the others.

    These ratios show by what factors a modelled time of that kind may be wrong. Raises BadInput as `fit_kinds` does.
    """
    _check(samples, device)
    ratios = np.array([s.seconds for s in samples]) / _left_out(samples, device)
    kinds = dict.fromkeys(s.kind for s in samples)
    return {k: tuple(float(r) for s, r in zip(samples, ratios, strict=True) if s.kind == k) for k in kinds}


def _left_out(samples: Sequence[Sample], device: DeviceSpec) -> np.ndarray:
    """Return the modelled seconds of each sample, by a fit to the samples of the other groups."""
    modelled, groups = np.zeros(len(samples)), min(len(samples), FOLDS)
    for group in range(groups):
        rest = [s for i, s in enumerate(samples) if i % groups != group]
        constant, other, own = _fit(rest, device)
        for i in range(group, len(samples), groups):
            modelled[i] = _seconds(own.get(samples[i].kind, other), samples[i].work, constant)
    return modelled


def _check(samples: Sequence[Sample], device: DeviceSpec) -> None:
    check_enough(samples, device.name)
    for s in samples:
        if not (0 < s.seconds < math.inf) or min(s.work) < 0 or not 0 < sum(s.work) < math.inf:
            raise BadInput(f"device {device.name!r}: a sample of {s.kind} has no work or no time ({s})")


def check_enough(samples: Sequence[Sample], device: str) -> None:
    """Check that there are enough samples to fit a roofline to. Raises BadInput where there are too few."""
    if len(samples) < LEAST_OF_KIND:
        raise BadInput(
            f"device {device!r}: a roofline needs {LEAST_OF_KIND} measured workloads, not {len(samples)}: tune a "
            "network on it first"
        )


def _error(away: np.ndarray) -> FitError:
    return FitError(len(away), float(np.median(away)), float(np.quantile(away, 0.9)))


def _seconds(peaks: Peaks, work: Work, overhead: float) -> float:
    return max(work.flop / peaks.flops, work.bytes / peaks.bandwidth) + overhead


def _fit(samples: Sequence[Sample], device: DeviceSpec) -> tuple[float, Peaks, dict[str, Peaks]]:
    """Return the overhead, the peaks of all samples, and those of each kind."""
    times = np.array([s.seconds for s in samples])
    first = [0.0, *np.geomspace(times.min() / 100, float(np.median(times)), _OVERHEADS)]
    found = [_with_overhead(samples, device, overhead) for overhead in first]
    best = min(range(len(first)), key=lambda i: found[i][0])
    low, high = first[max(best - 1, 0)], first[min(best + 1, len(first) - 1)]
    again = [_with_overhead(samples, device, c) for c in np.linspace(low, high, _OVERHEADS)]
    _, overhead, general, peaks = min((found[best], *again), key=lambda one: one[0])
    return overhead, general, peaks


def _with_overhead(
    samples: Sequence[Sample], device: DeviceSpec, overhead: float
) -> tuple[float, float, Peaks, dict[str, Peaks]]:
    """Return the loss, the overhead itself, the peaks of all samples, and those of each kind."""
    loss, general = _peaks(samples, overhead, Peaks(device.flops, device.bandwidth))
    total, peaks = 0.0, {}
    for kind in dict.fromkeys(s.kind for s in samples):
        own = [s for s in samples if s.kind == kind]
        if len(own) >= LEAST_OF_KIND:
            part, peaks[kind] = _peaks(own, overhead, general)
        else:
            part = loss
        total += part * len(own)
    return total, float(overhead), general, peaks


def _peaks(samples: Sequence[Sample], overhead: float, known: Peaks) -> tuple[float, Peaks]:
    """Return the loss of the best peaks with that overhead, and these peaks."""
    flop, moved, times = (np.array(c) for c in zip(*((*s.work, s.seconds) for s in samples), strict=True))
    busy = times - overhead
    first = [_candidates(flop, busy, known.flops), _candidates(moved, busy, known.bandwidth)]
    loss = _losses(flop, moved, times, overhead=overhead, rates=first, known=known)
    i, j = np.unravel_index(int(np.argmin(loss)), loss.shape)
    # The least loss is at a kink, where the model meets a sample, or between two rates that were tried.
    second = [_around(first[0], int(i)), _around(first[1], int(j))]
    loss = _losses(flop, moved, times, overhead=overhead, rates=second, known=known)
    i, j = np.unravel_index(int(np.argmin(loss)), loss.shape)
    return float(loss[i, j]), Peaks(float(second[0][i]), float(second[1][j]))


def _candidates(amount: np.ndarray, busy: np.ndarray, known: float) -> np.ndarray:
    """Return rates that some samples reach if nothing else delays them, and the known rate."""
    usable = (amount > 0) & (busy > 0)
    if not usable.any():
        return np.array([known])
    rates = np.sort(amount[usable] / busy[usable])
    return np.unique([*rates[np.rint(np.linspace(0, len(rates) - 1, _CANDIDATES)).astype(int)], known])


def _around(rates: np.ndarray, at: int) -> np.ndarray:
    """Return the rate at index `at`, its neighbours, and rates between them."""
    near = rates[max(at - 1, 0) : at + 2]
    between = near[:-1, None] * (near[1:] / near[:-1])[:, None] ** np.linspace(0, 1, _BETWEEN)[1:-1]
    return np.unique(np.concatenate([near, between.ravel()]))


def _losses(
    flop: np.ndarray, moved: np.ndarray, times: np.ndarray, *, overhead: float, rates: list[np.ndarray], known: Peaks
) -> np.ndarray:
    """Return the loss for each pair of rates."""
    flops, bandwidths = rates
    computing = flop / flops[:, None, None]
    moving = moved / bandwidths[None, :, None]
    loss = np.abs(np.log((np.maximum(computing, moving) + overhead) / times)).mean(axis=-1)
    pulled = np.abs(np.log(flops / known.flops))[:, None] + np.abs(np.log(bandwidths / known.bandwidth))[None, :]
    return loss + _PULL * pulled
