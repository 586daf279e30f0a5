"""Defines the kind "cuda:N": Nvidia's GPUs."""

from __future__ import annotations

import tvm

from tuner.devices.base import Device
from tuner.devices.cuda.on_boards import CudaOnBoards
from tuner.devices.cuda.opening import CudaInfo
from tuner.devices.kind import NumberedKind, check_exists, refuse_threads

# The architectures of Jetsons (TX1 and Nano, TX2, Xavier, Orin), whose GPU has no memory of its own.
_INTEGRATED = frozenset(("sm_53", "sm_62", "sm_72", "sm_87"))


class CudaKind(NumberedKind):
    """Opens CUDA devices, as the driver counts them. An idle one would pass an event before the kernel that it times
    has been launched, so a queue is given two calls."""

    name = "cuda"
    queue_depth = 2
    on_boards = CudaOnBoards()

    def open(self, spec: str, threads: int | None) -> Device:
        refuse_threads(spec, threads)
        name = self.spec(self.number(spec))
        return CudaInfo.from_runtime(self.runtime_device(name)).device(name)

    def list_here(self) -> list[Device]:
        found: list[Device] = []
        while tvm.runtime.device(self.name, len(found)).exist:
            found.append(self.open(self.spec(len(found)), None))
        return found

    def runtime_device(self, spec: str) -> tvm.runtime.Device:
        return check_exists(spec, tvm.runtime.device(self.name, self.number(spec)))

    def shares_memory(self, device: Device) -> bool:
        return device.key.attrs.get("arch") in _INTEGRATED
