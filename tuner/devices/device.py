"""What a device is: its TVM target and its key in the tuning database. `open_device("cpu")` opens the host."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass

import tvm
from tvm.target import Target

from tuner.devices.topology import last_level_cache_bytes, usable_cpus
from tuner.errors import BadInput
from tuning_db.record import DeviceKey

# A family shares its vector unit; the first feature that the target has names it.
_FAMILIES: dict[str, tuple[tuple[str, str], ...]] = {
    "x86_64": (("avx512f", "avx512"), ("avx2", "avx2"), ("sse4.2", "sse4")),
    "aarch64": (("neon", "neon"),),
}
_OTHER_KINDS = re.compile(r"(opencl|cuda):\d+|board:.+")


@dataclass(frozen=True)
class Device:
    """A processor that kernels run on. `threads`: how many threads of it a kernel uses (its own core each)."""

    name: str
    target: Target
    key: DeviceKey
    threads: int

    def tvm_device(self) -> tvm.runtime.Device:
        return tvm.cpu()


def _family(machine: str, target: Target) -> str:
    has = tvm.get_global_func("target.target_has_feature")
    suffix = next((name for feature, name in _FAMILIES.get(machine, ()) if has(feature, target)), None)
    return f"{machine}-{suffix}" if suffix else machine


def _default_threads(cores: int) -> int:
    text = os.environ.get("TVM_NUM_THREADS")
    if text is None:
        return cores
    if not text.isdecimal():
        raise BadInput(f"TVM_NUM_THREADS={text!r} is not a number of threads: unset it or give one")
    return int(text)


def _open_cpu(threads: int | None) -> Device:
    cores = len(usable_cpus())
    count = _default_threads(cores) if threads is None else threads
    if not 1 <= count <= cores:
        raise BadInput(
            f"{count} threads were asked for, but this process may use {cores} physical core(s): "
            f"give a number from 1 to {cores} (threads that share a core cannot be measured)"
        )
    machine = platform.machine()
    mcpu = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    # LLVM's optimisation level stays at its 3: at 1 a tenth of all schedules run 1.4 to 2.7 times as long, at 2 direct
    # convolutions 1.25 times, and what is deployed is compiled at 3 wherever nobody thinks of it.
    options = {"kind": "llvm", "mcpu": mcpu, "num-cores": count}
    if machine == "aarch64":  # TVM reads an ARM target's features from its triple
        options["mtriple"] = "aarch64-linux-gnu"
    target = Target(options)
    attrs = {"threads": count, "last_level_cache_bytes": last_level_cache_bytes()}
    return Device("cpu", target, DeviceKey("cpu", _family(machine, target), mcpu, attrs), count)


def open_device(spec: str, threads: int | None = None) -> Device:
    """The device that `spec` names: "cpu" (`threads` defaults to TVM_NUM_THREADS, else to every usable core).

    Raises BadInput for a spec that is not one, or that this build cannot drive, and for more threads than cores.
    """
    if spec == "cpu":
        return _open_cpu(threads)
    if _OTHER_KINDS.fullmatch(spec):
        raise BadInput(f"device {spec!r}: this build drives only the device cpu")
    raise BadInput(f"unknown device {spec!r}: give cpu, opencl:N, cuda:N or board:NAME")


def list_devices() -> list[Device]:
    """Every device that can be opened here, with all of its threads."""
    return [open_device("cpu")]
