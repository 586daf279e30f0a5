"""Defines what edgetune asks of a kind of device: `DeviceKind`, `NumberedKind` for kinds that count their devices, and
`OnBoards` for kinds that boards have too. `registry` knows the kinds that there are."""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import tvm
from tvm.target import Target

from tuner.errors import BadInput
from tuning_db.record import DeviceKey

if TYPE_CHECKING:
    from tuner.devices.base import Device
    from tuner.devices.opencl.control import Launch

# How candidates go to a device: as a library that TVM's runtime loads, or as launches of kernels' source.
Form = Literal["library", "launches"]


class OnBoards(ABC):
    """Describes the devices of a kind that boards have, from what a board's agent says. `facts` are the board's, and
    `described` is what its driver says of the device; it is empty where there is no driver.

    `form` says in what form candidates go to the device. `package` is the Python package that the agent needs for it,
    None if TVM's runtime is enough.
    """

    form: ClassVar[Form]
    package: ClassVar[str | None] = None

    @abstractmethod
    def listed(self, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return what the facts describe, by the spec that the device has on the board. Raises KeyError or TypeError
        for facts that lack it."""

    @abstractmethod
    def device(self, name: str, facts: dict[str, Any], described: dict[str, Any], threads: int | None) -> Device:
        """Return the device, which this host calls `name`. Raises BadInput for what cannot be one, and for more
        threads than it has."""

    @abstractmethod
    def key(self, facts: dict[str, Any], described: dict[str, Any], target: Target, threads: int) -> DeviceKey:
        """Return the device's key in the tuning database."""


class DeviceKind:
    """Says how a kind's devices are named and opened, and what is special about measuring on them. It has no state,
    because processes exchange a device's name and look the kind up by it. Specs are such names: "opencl:0".

    `name` is its line in the registry. `usage` is how a person writes a spec, and `example` is what a shell completes.

    `is_cpu`: its devices are cores of the machine that they are in, where TVM's functions are called as they are.
    `is_remote`: they are in another machine, and boards' runners and executors measure there. Other devices are driven
    by one of TVM's runtimes, in this machine. `takes_threads`: a person may say how many host threads a kernel uses.
    `queue_depth` is how many calls a queue is given at a time: with two, one is timed while the other keeps the device
    busy. `keeps_binaries`: its drivers compile kernels, and what they compile is kept in a folder.
    """

    name: ClassVar[str]
    usage: ClassVar[str]
    example: ClassVar[str]
    is_cpu: ClassVar[bool] = False
    is_remote: ClassVar[bool] = False
    takes_threads: ClassVar[bool] = False
    queue_depth: ClassVar[int] = 1
    keeps_binaries: ClassVar[bool] = False
    on_boards: ClassVar[OnBoards | None] = None

    @property
    def key_kind(self) -> str:
        """Return the kind in the keys of its devices: what is known of one CPU is of use for every other."""
        return "cpu" if self.is_cpu else self.name

    def recognises(self, spec: str) -> bool:
        """Tell whether a spec names a device of this kind, here or not."""
        raise NotImplementedError

    def open(self, spec: str, threads: int | None) -> Device:
        """Open the device of a spec of this kind. Raises BadInput if it is not here, and for threads that it cannot
        have."""
        raise NotImplementedError

    def list_here(self) -> list[Device]:
        """Return the devices of this kind that can be opened here, each with all of its threads. Raises BadInput where
        what finds them does not work."""
        raise NotImplementedError

    def runtime_device(self, spec: str) -> tvm.runtime.Device:
        """Return TVM's device, with the runtime that drives it loaded. Raises BadInput where it is not there."""
        raise NotImplementedError

    def find(self, key: DeviceKey) -> Device | None:
        """Return the device here that has a key in the tuning database, or None if there is none."""
        if key.kind != self.key_kind:
            return None
        return next((device for device in self.list_here() if device.key == key), None)

    def called(self, spec: str) -> str:
        """Return what a person calls the device."""
        return spec

    def spec_there(self, spec: str) -> str:
        """Return the spec that the device has in the machine that it is in."""
        return spec

    def form(self, spec: str) -> Form:
        """Return in what form candidates go to the device."""
        return "library"

    def measuring_cores(self, device: Device, usable: Sequence[int]) -> Sequence[int]:
        """Return those of the usable cores that the process which measures runs on."""
        return usable

    def shares_memory(self, device: Device) -> bool:
        """Tell whether the device works on the host's main memory and has none of its own."""
        return self.is_cpu

    def compile_ahead(self, spec: str, module: tvm.runtime.Module) -> None:
        """Let the device's driver compile the kernels of a built module, so that the process that runs them finds them
        compiled. Kernels are machine code already unless a kind says otherwise. Raises RuntimeError with the driver's
        log if it refuses them."""

    def compiles_when_run(self, spec: str) -> bool:
        """Tell whether the device's driver compiles a kernel when it is first launched."""
        return False

    def keep_binaries_in(self, folder: str, spec: str) -> None:
        """Set the folder where this process looks for what the device's driver has compiled, and leaves it. This has to
        be called before a driver is opened."""

    def clear_binaries(self, folder: str) -> None:
        """Delete what drivers have compiled into the folder so far."""

    def share_cores(self, rest: int, rise: int) -> None:
        """Tell drivers that compute on the host's cores of a pool that waits there, by the addresses of two functions
        of C: `rest` and `rise` as in `opencl.set_host_threads`."""

    def trace(self) -> AbstractContextManager[list[Launch]]:
        """Record the launches of kernels inside the block, as far as drivers tell of them."""
        return contextlib.nullcontext([])


class NumberedKind(DeviceKind):
    """A kind whose devices have numbers, as in "opencl:0"."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.usage, cls.example = f"{cls.name}:N", f"{cls.name}:0"

    def recognises(self, spec: str) -> bool:
        return re.fullmatch(rf"{self.name}:\d+", spec) is not None

    def spec(self, number: int) -> str:
        """Return the spec of the device of a number."""
        return f"{self.name}:{number}"

    def number(self, spec: str) -> int:
        """Return the number in a spec of this kind."""
        return int(spec.partition(":")[2])


def refuse_threads(spec: str, threads: int | None) -> None:
    """Raise BadInput if somebody asked for threads of a device that takes none."""
    if threads is not None:
        raise BadInput(f"device {spec}: a number of threads is for the device cpu; leave it out")


def check_exists(spec: str, device: tvm.runtime.Device) -> tvm.runtime.Device:
    """Return TVM's device. Raises BadInput unless it is here."""
    if not device.exist:
        raise BadInput(f"device {spec}: not found here; `tune doctor` says which devices are, and what is missing")
    return device
