"""Opens a device by its name: `open_device("cpu")`, `open_device("opencl:0")`."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from tuner.devices.base import Device
from tuner.devices.cpu import open_cpu
from tuner.devices.gpu import list_gpus, open_cuda, open_opencl
from tuner.devices.remote import is_board, open_board
from tuner.errors import BadInput

_log = logging.getLogger(__name__)

_NUMBERED = re.compile(r"(opencl|cuda):(\d+)")


def open_device(spec: str, threads: int | None = None) -> Device:
    """Open the device that `spec` names: "cpu", "opencl:N", "cuda:N" or "board:NAME". `threads` is for CPUs alone
    (default: TVM_NUM_THREADS, else every usable core).

    Raises BadInput for a spec that is not one, for a device that is not here, and for more threads than cores.
    """
    device = _opened(spec, threads)
    _log.info("opened %s; its key in the database is %s", device.title, device.key.key)
    return device


def _opened(spec: str, threads: int | None) -> Device:
    if spec == "cpu":
        return open_cpu(threads)
    numbered = _NUMBERED.fullmatch(spec)
    if numbered:
        if threads is not None:
            raise BadInput(f"device {spec}: a number of threads is for the device cpu; leave it out")
        opened = open_opencl if numbered[1] == "opencl" else open_cuda
        return opened(int(numbered[2]))
    if is_board(spec):
        return open_board(spec, threads)
    raise BadInput(f"unknown device {spec!r}: give cpu, opencl:N, cuda:N or board:NAME")


def open_devices(specs: Sequence[str], threads: int | None = None) -> list[Device]:
    """Open several devices, which have to differ. `threads` is for the CPU among them. Raises BadInput as `open_device`
    does, for a device that is named twice, and for threads without a CPU."""
    named = ",".join(specs)
    if not specs or len(set(specs)) < len(specs):
        raise BadInput(f"devices {named!r}: give devices that differ, with commas between them: opencl:0,cpu")
    if threads is not None and "cpu" not in specs:
        raise BadInput(f"device {named}: a number of threads is for the device cpu; leave it out")
    return [open_device(spec, threads if spec == "cpu" else None) for spec in specs]


def list_devices() -> list[Device]:
    """Return every device that can be opened here, the CPU with all of its threads. Raises BadInput where the OpenCL
    runtime cannot be compiled."""
    return [open_cpu(None), *list_gpus()]
