"""What one part of an operator takes on a device. Start at `CostModel`; `Roofline` needs nothing but the topology.

Paper 002, section 5.1, measures each operator once for every size that it has and assumes that nothing else matters.
Where nothing was measured (a device that is not here), a roofline stands in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np

from tuner.errors import BadInput
from tuner.placement.networks import Operator
from tuner.placement.topology import DeviceSpec


class Phase(Enum):
    """What a task of an operator computes: an inference has FORWARD alone, a training step all three."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


class Work(NamedTuple):
    """Of one task: flop, and bytes read and written."""

    flop: float
    bytes: float


class CostModel(Protocol):
    """What parts of operators take on devices, in seconds."""

    def seconds(self, operator: Operator, phase: Phase, work: Work, share: float, device: DeviceSpec) -> float:
        """Of a part that has `share` (0 to 1) of an operator's output."""
        ...


@dataclass(frozen=True)
class Roofline:
    """A device's peaks, of which kernels reach `compute` and `memory` (0 to 1): the larger of both times, and the
    device's overhead for every task."""

    compute: float = 0.6
    memory: float = 0.8

    def seconds(self, operator: Operator, phase: Phase, work: Work, share: float, device: DeviceSpec) -> float:
        busy = max(work.flop / (self.compute * device.flops), work.bytes / (self.memory * device.bandwidth))
        return busy + device.overhead


@dataclass(frozen=True)
class Measured:
    """Seconds of whole operators, measured, by their names and the device's. A part takes its share of what was
    measured as the roofline (or one that was fitted, `fitting.FittedCosts`) shares it out; what was not measured is the
    roofline's. Forward steps only are measured."""

    table: Mapping[tuple[str, str], float]
    whole: Mapping[str, Work]
    roofline: CostModel = Roofline()

    def seconds(self, operator: Operator, phase: Phase, work: Work, share: float, device: DeviceSpec) -> float:
        modelled = self.roofline.seconds(operator, phase, work, share, device)
        measured = self.table.get((operator.name, device.name))
        if measured is None or phase is not Phase.FORWARD:
            return modelled
        if share == 1:
            return measured
        return measured * modelled / self.roofline.seconds(operator, phase, self.whole[operator.name], 1.0, device)


def fit_roofline(samples: Sequence[tuple[Work, float]], device: DeviceSpec) -> DeviceSpec:
    """The device with the peaks and the overhead that explain measured seconds best, by least squares of relative
    errors of the roofline's smooth form, flop / a + bytes / b + c, none negative. Use `Roofline(1, 1)` with it.

    Raises BadInput where fewer than three samples, or ones all alike, leave that open.
    """
    times = np.array([seconds for _, seconds in samples])
    if len(samples) < 3 or not np.all(times > 0):
        raise BadInput(f"device {device.name!r}: a roofline needs 3 measured times above 0, not {len(samples)}")
    terms = np.array([[work.flop, work.bytes, 1.0] for work, _ in samples])
    scale = terms.max(axis=0)
    if np.any(scale <= 0):
        raise BadInput(f"device {device.name!r}: no sample has {'flop' if scale[0] <= 0 else 'bytes'}")
    found = _nonnegative(terms / scale / times[:, None], np.ones(len(times))) / scale
    tiny = np.finfo(float).tiny
    flops = 1 / found[0] if found[0] > tiny else device.flops
    bandwidth = 1 / found[1] if found[1] > tiny else device.bandwidth
    return replace(device, flops=float(flops), bandwidth=float(bandwidth), overhead=float(found[2]))


def _nonnegative(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Least squares with no coefficient below 0: the best of the few subsets, exactly."""
    best, least = np.zeros(rows.shape[1]), float(values @ values)
    for chosen in range(1, 1 << rows.shape[1]):
        columns = [i for i in range(rows.shape[1]) if chosen >> i & 1]
        part, *_ = np.linalg.lstsq(rows[:, columns], values, rcond=None)
        error = float(((rows[:, columns] @ part - values) ** 2).sum())
        if np.all(part >= 0) and error < least:
            best, least = np.zeros(rows.shape[1]), error
            best[columns] = part
    return best
