"""Opens a board across the network as a device. Start at `open_board`.

The target of its CPU is put together from what the agent reports: a board has no compiler that could be asked.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from tvm.target import Target

from templates.gpu.limits import gpu_target
from tuner.devices.base import Device
from tuner.devices.board import BoardBusy, BoardGone, Boards, KernelDied, Link
from tuner.devices.cpu import family, host_target
from tuner.devices.gpu import LEAST_CACHE_BYTES, CudaInfo, limits_of
from tuner.devices.keys import device_key, unless_emulated
from tuner.devices.opencl import info_of
from tuner.errors import BadInput
from tuning_db.record import DeviceKey

_PREFIX = "board:"
_ON_BOARD = re.compile(r"cpu|(opencl|cuda):\d+")
_MEMORY_BYTES = 1 << 30  # what asking a driver may take
# LLVM's names of ARM's cores, by the part number that the kernel reports. These are cores of edge boards and clouds.
_ARM = {
    "0xd03": "cortex-a53",
    "0xd04": "cortex-a35",
    "0xd05": "cortex-a55",
    "0xd07": "cortex-a57",
    "0xd08": "cortex-a72",
    "0xd09": "cortex-a73",
    "0xd0a": "cortex-a75",
    "0xd0b": "cortex-a76",
    "0xd0c": "neoverse-n1",
    "0xd40": "neoverse-v1",
    "0xd41": "cortex-a78",
    "0xd42": "cortex-a78ae",
    "0xd49": "neoverse-n2",
    "0xd4f": "neoverse-v2",
}
# The levels of the x86-64 ABI, by flags that the kernel reports and that no lower level has.
_X86 = (("x86-64-v4", {"avx512f", "avx512bw", "avx512dq", "avx512vl"}), ("x86-64-v3", {"avx2", "fma", "bmi2"}))


def is_board(name: str) -> bool:
    """Tell whether a device's name is that of a board's device: "board:pi", "board:pi/opencl:0"."""
    return name.startswith(_PREFIX)


def boards_of(name: str) -> list[str]:
    """Return the devices that the name of several boards means: "board:a+b/opencl:0" means that device of "board:a" and
    that of "board:b"."""
    boards, slash, device = name.removeprefix(_PREFIX).partition("/")
    return [_PREFIX + board + slash + device for board in boards.split("+")]


def place_on_board(name: str) -> tuple[str, str]:
    """Return the board, and the device there, that a device's name means: "board:pi" is the CPU of pi. Raises BadInput
    for a kind of device that boards do not have."""
    board, _, device = name.removeprefix(_PREFIX).partition("/")
    if not _ON_BOARD.fullmatch(device or "cpu"):
        raise BadInput(f"device {name}: give board:{board} for its CPU, board:{board}/opencl:N or /cuda:N")
    return board, device or "cpu"


def form_of(name: str) -> str:
    """Return in what form candidates go to a device: as a "library" that TVM's runtime loads, or as "launches" of
    kernels' source."""
    return "launches" if is_board(name) and place_on_board(name)[1] != "cpu" else "library"


def called(name: str) -> str:
    """Return a device's name as a person says it: "board pi" for "board:pi"."""
    return f"board {place_on_board(name)[0]}" if is_board(name) else name


def open_board(name: str, threads: int | None) -> Device:
    """Open the device "board:NAME", or "board:NAME+NAME" for equal boards that share the work. Of several boards, those
    that are away now may come later. Raises BadInput where a board is not known, none can be reached, or two differ."""
    names = boards_of(name)
    if len(set(names)) < len(names):
        raise BadInput(f"device {name}: give different boards")
    known = [(Boards()[board], device) for board, device in map(place_on_board, names)]
    found, away = [], []
    for one, (board, device) in zip(names, known, strict=True):
        try:
            with Link(board) as link:
                found.append(
                    device_of(one, link.facts, threads) if device == "cpu" else _gpu_of(one, link, device, threads)
                )
        except (BoardGone, BoardBusy) as error:
            away.append(str(error))
    if not found:
        raise BadInput("; ".join(away))
    for other in found[1:]:
        if not alike(other.key, found[0].key):
            unlike = f"{_described(other)} is not {_described(found[0])}"
            raise BadInput(f"device {name}: {unlike}: only equal boards share a tuning run")
    return replace(found[0], name=name)


def alike(one: DeviceKey, other: DeviceKey) -> bool:
    """Tell whether two boards may share a tuning run."""
    return (one.family, one.model, one.attrs.get("threads")) == (other.family, other.model, other.attrs.get("threads"))


def _gpu_of(name: str, link: Link, device: str, threads: int | None) -> Device:
    """Open an OpenCL or CUDA device of a board. Raises BadInput where the board has no such device."""
    if threads is not None:
        raise BadInput(f"device {name}: a number of threads is for the CPU; leave it out")
    settings = {"device": device, "form": "launches", "threads": 1, "memory_bytes": _MEMORY_BYTES}
    try:
        link.start(settings, 60.0, waits=lambda _: None)  # a host that only asks is soon next in the turn queue
        described, _ = link.ask({"do": "describe"})
    except (KernelDied, RuntimeError) as error:
        raise BadInput(f"device {name}: {error}") from error
    return gpu_device_of(name, link.facts, described)


def _described(device: Device) -> str:
    return f"{device.name} ({device.key.family} {device.key.model}, {device.threads} threads)"


def device_of(name: str, facts: dict[str, Any], threads: int | None) -> Device:
    """Return the CPU that reports these facts, as a device. Raises BadInput for more threads than it has, and for an
    architecture that nothing is compiled for."""
    cores = len(facts["cpus"])
    count = cores if threads is None else threads
    if not 1 <= count <= cores:
        raise BadInput(f"{count} threads were asked for, but {name} has {cores} physical core(s): give 1 to {cores}")
    target = Target(cpu_of(facts, count))
    return Device(name, target, key_of(facts, target, count), count, int(facts["last_level_cache_bytes"]))


def gpu_device_of(name: str, facts: dict[str, Any], described: dict[str, Any]) -> Device:
    """Return the OpenCL or CUDA device of a board, from the board's facts and what the driver there says of the device
    (the fields of opencl.DeviceInfo, and "cache_bytes"; or, with the kind "cuda", those of gpu.CudaInfo)."""
    if described.get("kind") == "cuda":
        cuda = CudaInfo.of(described)
        target, cache = gpu_target(cuda.limits, host_target(1)), max(cuda.cache_bytes, LEAST_CACHE_BYTES)
        return Device(name, target, cuda.key, 1, cache, cuda.memory_bytes)
    info, cache = info_of(described), int(described.get("cache_bytes", 0))
    limits, key = limits_of(info), gpu_key_of(facts, described)
    if limits.family == "cpu":
        cache = int(facts["last_level_cache_bytes"])
    # The host part of its code never runs: a board is sent launches.
    target = gpu_target(limits, host_target(1), model=info.name)
    return Device(name, target, key, 1, max(cache, LEAST_CACHE_BYTES), info.global_memory_bytes)


def gpu_key_of(facts: dict[str, Any], described: dict[str, Any]) -> DeviceKey:
    """Return the key of a board's OpenCL or CUDA device in the tuning database."""
    if described.get("kind") == "cuda":
        return CudaInfo.of(described).key
    info = info_of(described)
    key = device_key(limits_of(info), info.name, info.compute_units, platform=info.platform, driver=info.driver_version)
    return unless_emulated(key, bool(facts.get("emulated")))


def key_of(facts: dict[str, Any], target: Target, threads: int) -> DeviceKey:
    """Return the key of a board's CPU in the tuning database."""
    known = {"threads": threads, "last_level_cache_bytes": int(facts["last_level_cache_bytes"])}
    key = DeviceKey("cpu", family(str(facts["machine"]), target), _model(facts), known)
    return unless_emulated(key, bool(facts.get("emulated")))


def cpu_of(facts: dict[str, Any], threads: int) -> dict[str, Any]:
    """Return the target of a board's CPU. Raises BadInput for a machine that nothing is compiled for."""
    machine = facts["machine"]
    if machine == "aarch64":
        return {
            "kind": "llvm",
            "mtriple": "aarch64-linux-gnu",
            "mcpu": _ARM.get(facts["cpu_ids"][1], "generic"),
            "mattr": ["+neon"],
            "num-cores": threads,
        }
    if machine == "x86_64":
        flags = set(facts["cpu_flags"])
        level = next((name for name, needed in _X86 if needed <= flags), "x86-64-v2")
        return {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": level, "num-cores": threads}
    raise BadInput(f"a board of the architecture {machine!r} cannot be compiled for (aarch64 and x86_64 can)")


def _model(facts: dict[str, Any]) -> str:
    reported = "" if facts.get("emulated") else facts["cpu_name"].lower()  # an emulator reports its own machine
    named = _ARM.get(facts["cpu_ids"][1]) or reported or "generic"
    return "-".join("".join(c if c.isalnum() else " " for c in named).split())
