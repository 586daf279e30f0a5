"""Opens the host's CPU as a device. Start at `open_cpu`."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

import tvm
from tvm.target import Target

from board_agent.facts import PROCFS, emulated
from board_agent.topology import last_level_cache_bytes, usable_cpus
from tuner.devices.base import Device
from tuner.devices.keys import unless_emulated
from tuner.errors import BadInput
from tuning_db.record import DeviceKey

# The CPUs of a family share a vector unit. The first feature that the target has names the family.
_FAMILIES: dict[str, tuple[tuple[str, str], ...]] = {
    "x86_64": (("avx512f", "avx512"), ("avx2", "avx2"), ("sse4.2", "sse4")),
    "aarch64": (("neon", "neon"),),
}


def host_target(threads: int) -> Target:
    """Return the target of this machine's CPU, for functions that use so many threads.

    LLVM's optimisation level stays at its default, 3. At level 1 a tenth of all schedules run 1.4 to 2.7 times as long,
    and at level 2 direct convolutions 1.25 times. Modules that are deployed are compiled at level 3 unless somebody
    sets another.
    """
    cpu = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    options = {"kind": "llvm", "mcpu": cpu, "num-cores": threads}
    if lacks := hidden_features(cpu, tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()):
        options["mattr"] = [f"-{name}" for name in lacks]
    if platform.machine() == "aarch64":  # TVM reads an ARM target's features from its triple
        options["mtriple"] = "aarch64-linux-gnu"
    return Target(options)


def hidden_features(cpu: str, found: Mapping[str, bool]) -> list[str]:
    """Return the features that LLVM takes a processor of this name to have and that the machine is `found` to lack.
    Virtual machines hide some, AVX-512's half precision for one, and code that uses them dies of an illegal
    instruction."""
    named = tvm.get_global_func("target.llvm_get_cpu_features")(Target({"kind": "llvm", "mcpu": cpu}))
    return sorted(str(name) for name, there in found.items() if not there and name in named)


def family(machine: str, target: Target) -> str:
    """Return the name of what a CPU's kernels have in common with those of others: its architecture and vector unit."""
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


def open_cpu(threads: int | None, procfs: Path = PROCFS) -> Device:
    """Open the CPU with so many threads (default: TVM_NUM_THREADS, else every usable core). Its key is the one that the
    same machine has as a board. Raises BadInput for more threads than cores."""
    cores = len(usable_cpus())
    count = _default_threads(cores) if threads is None else threads
    if not 1 <= count <= cores:
        raise BadInput(
            f"{count} threads were asked for, but this process may use {cores} physical core(s): "
            f"give a number from 1 to {cores} (threads that share a core cannot be measured)"
        )
    target = host_target(count)
    attrs = {"threads": count, "last_level_cache_bytes": last_level_cache_bytes()}
    key = DeviceKey("cpu", family(platform.machine(), target), str(target.attrs["mcpu"]), attrs)
    return Device("cpu", target, unless_emulated(key, emulated(procfs)), count, last_level_cache_bytes())
