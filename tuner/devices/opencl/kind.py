"""Defines the kind "opencl:N": the devices of the OpenCL drivers that are here."""

from __future__ import annotations

from contextlib import AbstractContextManager

import tvm

from board_agent.facts import emulated
from board_agent.topology import last_level_cache_bytes
from tuner.devices.base import Device
from tuner.devices.gpu import cache_bytes
from tuner.devices.keys import flush_every
from tuner.devices.kind import NumberedKind, check_exists, refuse_threads
from tuner.devices.opencl import binaries
from tuner.devices.opencl.control import Launch, set_flush_every, set_host_threads, trace
from tuner.devices.opencl.library import load
from tuner.devices.opencl.listing import device_info, devices, has_host_memory
from tuner.devices.opencl.on_boards import OpenclOnBoards
from tuner.devices.opencl.opening import device_of, family_of


class OpenclKind(NumberedKind):
    """Opens OpenCL devices, as `opencl.devices` counts them. Their drivers compile kernels from source."""

    name = "opencl"
    keeps_binaries = True
    on_boards = OpenclOnBoards()

    def open(self, spec: str, threads: int | None) -> Device:
        refuse_threads(spec, threads)
        index = self.number(spec)
        info = device_info(index)
        on_cpu = family_of(info) == "cpu"
        cache = last_level_cache_bytes() if on_cpu else cache_bytes(self.runtime_device(spec))
        return device_of(self.spec(index), info, cache_bytes=cache, is_emulated=emulated())

    def list_here(self) -> list[Device]:
        """Return every OpenCL device. Raises BadInput where the OpenCL runtime cannot be compiled."""
        return [self.open(self.spec(index), None) for index in range(len(devices()))]

    def runtime_device(self, spec: str) -> tvm.runtime.Device:
        """Return TVM's device. Where its driver hangs on long queues, they are flushed in time from now on."""
        load()
        device = check_exists(spec, tvm.runtime.device(self.name, self.number(spec)))
        if launches := flush_every(family_of(device_info(device.index))):
            set_flush_every(device.index, launches)
        return device

    def shares_memory(self, device: Device) -> bool:
        return has_host_memory(self.number(device.name))

    def compile_ahead(self, spec: str, module: tvm.runtime.Module) -> None:
        binaries.compile_kernels(self.number(spec), module)

    def compiles_when_run(self, spec: str) -> bool:
        return binaries.compiles_when_run(self.number(spec))

    def keep_binaries_in(self, folder: str, spec: str) -> None:
        binaries.keep_binaries_in(folder, self.number(spec))

    def clear_binaries(self, folder: str) -> None:
        binaries.clear_binaries(folder)

    def share_cores(self, rest: int, rise: int) -> None:
        set_host_threads(rest, rise)

    def trace(self) -> AbstractContextManager[list[Launch]]:
        return trace()
