"""Describes devices that networks are exported for where they are not here: a CPU, a CUDA GPU, or both. Start at
`devices_elsewhere`."""

from __future__ import annotations

import re

from tvm.target import Target

from templates.gpu.limits import gpu_target
from tuner.devices.base import Device
from tuner.devices.cpu import cpu_elsewhere, cpus_elsewhere
from tuner.devices.cuda import arch_of
from tuner.devices.gpu import LEAST_CACHE_BYTES
from tuner.devices.keys import device_key
from tuner.devices.kind import refuse_threads
from tuner.devices.profiles import all_profiles, cuda_limits
from tuner.errors import BadInput
from tuning_db.record import DeviceKey

_ARCH = re.compile(r"sm_(\d+)(\d)a?")
_OWN = "cuda"  # names the GPU of a board


def devices_elsewhere(spec: str, threads: int | None = None, *, experimental: bool = False) -> list[Device]:
    """Return the devices that `spec` names, for CPUs with so many threads (default: the CPU's fast cores).

    It is a CPU ("rpi4"), or a GPU behind the name of the CPU of its host: that of the board ("jetson-orin:cuda"), or
    one of an architecture ("x86-64-v3:sm_86"). With ",cpu" at the end the CPU is the second device. A CPU that is an
    experiment is described only with `experimental`.

    Raises BadInput for a name that is not known, and for one that is an experiment where none is asked for.
    """
    name, colon, rest = spec.partition(":")
    known = next((cpu for cpu in cpus_elsewhere() if cpu.name == name), None)
    if known is not None and known.experimental and not experimental:
        raise BadInput(f"--target {spec}: {known.title} is an experiment; add --experimental to have it")
    if known is not None and known.is_webassembly and colon:
        raise BadInput(f"--target {spec}: {name} has no GPU; give --target {name}")
    gpu, comma, beside = rest.partition(",")
    cpu = cpu_elsewhere(name, threads)
    if not colon:
        return [cpu]
    if comma and beside != "cpu":
        raise BadInput(f"--target {spec}: only the CPU computes beside a GPU: {name}:{gpu},cpu")
    if not comma:
        refuse_threads(spec, threads)
    found = _gpu(spec, name, gpu, cpu.target)
    return [found, cpu] if comma else [found]


def _gpu(spec: str, board: str, gpu: str, host: Target) -> Device:
    """Return the GPU `gpu` of a board, whose CPU has the target `host`."""
    own = {p.name: p for p in all_profiles() if p.limits.kind == _OWN}
    named = _ARCH.fullmatch(gpu)
    if gpu == _OWN and board in own:
        limits, key = own[board].limits, own[board].key()
    elif named is not None:
        limits = cuda_limits(arch_of(int(named[1]), int(named[2])))
        key = _key_of(limits.arch)
    else:
        raise BadInput(
            f"--target {spec}: no such GPU; give an architecture, such as {board}:sm_86, or {_OWN} for that of a Jetson"
        )
    return Device("cuda:0", gpu_target(limits, host, board), key, 1, LEAST_CACHE_BYTES)


def _key_of(arch: str) -> DeviceKey:
    """Return the key of any GPU of an architecture. Configs that were measured on others of its family serve it."""
    return device_key(cuda_limits(arch), arch, arch=arch)
