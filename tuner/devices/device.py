"""Opens a device by its name: `open_device("cpu")`, `open_device("opencl:0")`."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import tvm

from tuner.devices.base import Device
from tuner.devices.registry import all_kinds, find_kind, kind_of
from tuner.errors import BadInput
from tuning_db.record import DeviceKey

_log = logging.getLogger(__name__)


def open_device(spec: str, threads: int | None = None) -> Device:
    """Open the device that `spec` names: "cpu", "opencl:N", "cuda:N" or "board:NAME". `threads` is for CPUs alone
    (default: TVM_NUM_THREADS, else every usable core).

    Raises BadInput for a spec that is not one, for a device that is not here, and for more threads than cores.
    """
    device = kind_of(spec).open(spec, threads)
    _log.info("opened %s; its key in the database is %s", device.title, device.key.key)
    return device


def open_devices(specs: Sequence[str], threads: int | None = None) -> list[Device]:
    """Open several devices, which have to differ. `threads` is for the CPU among them. Raises BadInput as `open_device`
    does, for a device that is named twice, and for threads without a CPU."""
    named = ",".join(specs)
    if not specs or len(set(specs)) < len(specs):
        raise BadInput(f"devices {named!r}: give devices that differ, with commas between them: opencl:0,cpu")
    if threads is not None and not any(map(_has_threads_here, specs)):
        raise BadInput(f"device {named}: a number of threads is for the device cpu; leave it out")
    return [open_device(spec, threads if _has_threads_here(spec) else None) for spec in specs]


def _has_threads_here(spec: str) -> bool:
    kind = find_kind(spec)
    return kind is not None and kind.takes_threads and not kind.is_remote


def list_devices() -> list[Device]:
    """Return every device that can be opened here, the CPU with all of its threads. Raises BadInput where the OpenCL
    runtime cannot be compiled."""
    return [device for kind in all_kinds() for device in kind.list_here()]


def find_device(key: DeviceKey) -> Device | None:
    """Return the device here that has a key in the tuning database, or None if there is none. Raises BadInput as
    `list_devices` does."""
    return next(filter(None, (kind.find(key) for kind in all_kinds())), None)


def runtime_device(name: str) -> tvm.runtime.Device:
    """Return TVM's device of a name ("cpu", "opencl:0", "cuda:1"), with the runtime that drives it loaded. Raises
    BadInput where the device is not there."""
    return kind_of(name).runtime_device(name)
