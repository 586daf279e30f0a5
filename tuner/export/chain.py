"""Chains of kernels, which are timed where a network is going to run. Start at `Chain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm import tirx

from tuner.devices import Device
from tuner.export.bare import Bare


@dataclass(frozen=True)
class Chain:
    """Kernels that run one after the other: `calls` has the index of each one's device, and the scheduled function.

    All values have the same `shape`, and are of float32. A kernel reads the last values of its device, as many as it
    has parameters but one, and writes a new value. Where the last value of all is on another device, it is copied
    first. A device that lacks values gets ones.
    """

    shape: tuple[int, ...]
    calls: Sequence[tuple[int, tirx.PrimFunc]]

    def export(self, devices: Sequence[Device], folder: Path) -> None:
        """Export the chain for some devices to a folder. Raises what `Bare.export` raises."""
        bare, held, last = Bare(devices), [list[int]() for _ in devices], None
        for device, kernel in self.calls:
            own = held[device]
            if last is not None and bare.values[last].device != device:
                own.append(bare.value(device, self.shape))
                bare.copy(last, own[-1])
            reads = len(kernel.params) - 1
            while len(own) < reads:
                own.append(bare.value(device, self.shape))
                bare.ones(device, own[-1])
            last = bare.value(device, self.shape)
            bare.call(device, kernel, (*own[len(own) - reads :], last))
            own.append(last)
        bare.export(self.calls[-1][0], folder)
