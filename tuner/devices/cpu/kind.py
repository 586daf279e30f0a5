"""Defines the kind "cpu": the host's CPU, with as many threads as are asked for."""

from __future__ import annotations

from collections.abc import Sequence

import tvm

from tuner.devices.base import Device
from tuner.devices.cpu.host import open_cpu
from tuner.devices.cpu.on_boards import CpuOnBoards
from tuner.devices.kind import DeviceKind
from tuner.errors import BadInput
from tuning_db.record import DeviceKey


class CpuKind(DeviceKind):
    """Opens the host's CPU. There is one, which is called "cpu"."""

    name = usage = example = "cpu"
    is_cpu = True
    takes_threads = True
    on_boards = CpuOnBoards()

    def recognises(self, spec: str) -> bool:
        return spec == self.name

    def open(self, spec: str, threads: int | None) -> Device:
        return open_cpu(threads)

    def list_here(self) -> list[Device]:
        return [open_cpu(None)]

    def runtime_device(self, spec: str) -> tvm.runtime.Device:
        return tvm.cpu()

    def find(self, key: DeviceKey) -> Device | None:
        """Return the CPU with the threads of the key, or None if the key is another's."""
        if key.kind != self.key_kind:
            return None
        try:
            found = open_cpu(int(str(key.attrs.get("threads", 1))))
        except BadInput:  # the key has more threads than this machine
            return None
        return found if found.key == key else None

    def measuring_cores(self, device: Device, usable: Sequence[int]) -> Sequence[int]:
        return usable[: device.threads]
