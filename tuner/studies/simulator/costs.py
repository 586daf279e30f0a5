"""What one part of an operator takes on a device. Start at `CostModel`; `Roofline` needs nothing but the topology.

Paper 002, section 5.1, measures each operator once for every size that it has and assumes that nothing else matters.
Where nothing was measured (a device that is not here), a roofline stands in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from tuner.studies.networks import NetworkOperator
from tuner.studies.topology import DeviceSpec


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

    def seconds(self, operator: NetworkOperator, phase: Phase, work: Work, share: float, device: DeviceSpec) -> float:
        """Of a part that has `share` (0 to 1) of an operator's output."""
        ...


@dataclass(frozen=True)
class Roofline:
    """A device's peaks, of which kernels reach `compute` and `memory` (0 to 1): the larger of both times, and the
    device's overhead for every task."""

    compute: float = 0.6
    memory: float = 0.8

    def seconds(self, operator: NetworkOperator, phase: Phase, work: Work, share: float, device: DeviceSpec) -> float:
        """Of a part; its `work` is what counts, its share does not matter."""
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

    def seconds(self, operator: NetworkOperator, phase: Phase, work: Work, share: float, device: DeviceSpec) -> float:
        modelled = self.roofline.seconds(operator, phase, work, share, device)
        measured = self.table.get((operator.name, device.name))
        if measured is None or phase is not Phase.FORWARD:
            return modelled
        if share == 1:
            return measured
        return measured * modelled / self.roofline.seconds(operator, phase, self.whole[operator.name], 1.0, device)
