"""Cost models return what one part of an operator takes on a device. Start at `CostModel`; `Roofline` needs nothing but
the topology.

Jia, Zaharia and Aiken ("Beyond Data and Model Parallelism for Deep Neural Networks", section 5.1) measure each operator
once for every size that it has, and assume that nothing else matters. Where nothing was measured (on a device that is
not here), a roofline stands in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from tuner.studies.networks import NetworkOperator
from tuner.studies.topology import DeviceSpec


class Phase(Enum):
    """The part of a training step that a task computes: an inference has FORWARD alone, a training step has all
    three."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


class Work(NamedTuple):
    """The work of one task: its flop, and the bytes that it reads and writes."""

    flop: float
    bytes: float


class CostModel(Protocol):
    """A model of what parts of operators take on devices, in seconds."""

    def seconds(self, operator: NetworkOperator, phase: Phase, work: Work, share: float, device: DeviceSpec) -> float:
        """Return the seconds of a part that has the share `share` (0 to 1) of an operator's output."""
        ...


@dataclass(frozen=True)
class Roofline:
    """A cost model from a device's peaks, of which kernels reach the shares `compute` and `memory` (0 to 1).

    A task takes the larger of its two times, and the device's overhead.
    """

    compute: float = 0.6
    memory: float = 0.8

    def seconds(self, operator: NetworkOperator, phase: Phase, work: Work, share: float, device: DeviceSpec) -> float:
        """Return the seconds of a part by its `work`; its share does not matter."""
        busy = max(work.flop / (self.compute * device.flops), work.bytes / (self.memory * device.bandwidth))
        return busy + device.overhead


@dataclass(frozen=True)
class Measured:
    """A cost model from measured seconds of whole operators, by the operator's and the device's name.

    A part takes its share of the measured seconds, in the proportion that `roofline` gives; that may be a fitted one
    (`fitting.FittedCosts`). What was not measured takes the roofline's seconds. Only forward steps are measured.
    """

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
