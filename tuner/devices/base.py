"""Defines `Device`, a processor with its TVM target and its key in the tuning database."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm.target import Target

from tuner.devices.kind import DeviceKind
from tuner.devices.registry import kind_of
from tuning_db.record import DeviceKey


@dataclass(frozen=True)
class Device:
    """A processor that kernels run on. `threads` is how many host threads a kernel uses, each on its own core (one for
    kernels that run on another processor). `cache_bytes` is the size of its last cache level. `memory_bytes` is what a
    network may have there, None where that is this process's own memory."""

    name: str
    target: Target
    key: DeviceKey
    threads: int
    cache_bytes: int
    memory_bytes: int | None = None

    @property
    def kind(self) -> DeviceKind:
        """Return the kind that the device's name is of. Raises BadInput for a device that can only be compiled for."""
        return kind_of(self.name)

    @property
    def is_host(self) -> bool:
        """Tell whether the device is a CPU, here or on a board."""
        return self.target.kind.name == "llvm"

    @property
    def title(self) -> str:
        """Return the device's name and model, for a person."""
        return f"{self.name} ({self.key.model})"

    def tvm_device(self) -> tvm.runtime.Device:
        """Return TVM's device of this name; see `DeviceKind.runtime_device`."""
        return self.kind.runtime_device(self.name)
