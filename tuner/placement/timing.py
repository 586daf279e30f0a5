"""Defines what measures the pieces that a plan is made of: `Timing`, and `TimingHere` for devices of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tvm.ir import IRModule

from tuner.devices import Device
from tuner.placement.kernel_timing import time_module
from tuner.placement.transfer_timing import Crossings


class Timing(Protocol):
    """Measures what pieces of networks, and copies between devices, take."""

    def module(self, module: IRModule, device: Device) -> tuple[float, ...]:
        """Return the seconds of all functions of a finished module's "main" together, in each of some inferences.
        Raises RuntimeError if the device refuses them."""

    def crossings(self, source: Device, target: Device, sizes: Sequence[int]) -> Mapping[int, tuple[float, ...]]:
        """Return the seconds that a value of each of some sizes, in bytes, takes from one device to another, several
        times. Raises RuntimeError if a device refuses the kernels between which it crosses."""


class TimingHere:
    """Measures, as a `Timing`, on devices of this machine."""

    def module(self, module: IRModule, device: Device) -> tuple[float, ...]:
        return time_module(module, device)

    def crossings(self, source: Device, target: Device, sizes: Sequence[int]) -> Mapping[int, tuple[float, ...]]:
        return Crossings(source, target, sizes).seconds()
