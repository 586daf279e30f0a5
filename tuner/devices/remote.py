"""A board across the network as a device. Start at `open_board`.

Its CPU's target is put together from what the agent reports: a board has no compiler that could be asked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm.target import Target

from tuner.devices.base import Device
from tuner.devices.board import BoardBusy, BoardGone, Boards, Link
from tuner.devices.cpu import family
from tuner.errors import BadInput
from tuning_db.record import DeviceKey

_PREFIX = "board:"
# LLVM's names of ARM's cores by the part number that the kernel reports; those of edge boards, and what clouds have.
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
# The levels of the x86-64 ABI, by flags that the kernel reports and that none below has.
_X86 = (("x86-64-v4", {"avx512f", "avx512bw", "avx512dq", "avx512vl"}), ("x86-64-v3", {"avx2", "fma", "bmi2"}))


def is_board(name: str) -> bool:
    return name.startswith(_PREFIX)


def boards_of(name: str) -> list[str]:
    """The devices that a name of several means: "board:a+b" is "board:a" and "board:b"."""
    return [_PREFIX + board for board in name.removeprefix(_PREFIX).split("+")]


def place_on_board(name: str) -> tuple[str, str]:
    """The board and the device there that a device's name means: "board:pi" is the CPU of pi."""
    board, _, device = name.removeprefix(_PREFIX).partition("/")
    return board, device or "cpu"


def open_board(name: str, threads: int | None) -> Device:
    """The device "board:NAME", or "board:NAME+NAME" for equal boards that share the work; of several, those that are
    away now may come later. Raises BadInput where a board is not known, none can be reached, or two differ."""
    names = boards_of(name)
    if len(set(names)) < len(names):
        raise BadInput(f"device {name}: give different boards")
    known = [Boards()[_on_cpu(one)] for one in names]
    found, away = [], []
    for one, board in zip(names, known, strict=True):
        try:
            with Link(board) as link:
                found.append(device_of(one, link.facts, threads))
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
    """Whether two boards may share a tuning run."""
    return (one.family, one.model, one.attrs.get("threads")) == (other.family, other.model, other.attrs.get("threads"))


def _on_cpu(name: str) -> str:
    board, device = place_on_board(name)
    if device != "cpu":
        raise BadInput(f"device {name}: only the CPU of a board can be driven yet: give board:{board}")
    return board


def _described(device: Device) -> str:
    return f"{device.name} ({device.key.family} {device.key.model}, {device.threads} threads)"


def device_of(name: str, facts: dict[str, Any], threads: int | None) -> Device:
    """The CPU that reports these facts. Raises BadInput for more threads than it has, and for an architecture that
    nothing is compiled for."""
    cores = len(facts["cpus"])
    count = cores if threads is None else threads
    if not 1 <= count <= cores:
        raise BadInput(f"{count} threads were asked for, but {name} has {cores} physical core(s): give 1 to {cores}")
    target = Target(cpu_of(facts, count))
    return Device(name, target, key_of(facts, target, count), count, int(facts["last_level_cache_bytes"]))


def key_of(facts: dict[str, Any], target: Target, threads: int) -> DeviceKey:
    """A board's key in the tuning database."""
    known = {"threads": threads, "last_level_cache_bytes": int(facts["last_level_cache_bytes"])}
    # The times of an emulated processor are no processor's: they must not pass for those of its family.
    suffix = "-emulated" if facts.get("emulated") else ""
    return DeviceKey("cpu", family(str(facts["machine"]), target) + suffix, _model(facts) + suffix, known)


def cpu_of(facts: dict[str, Any], threads: int) -> dict[str, Any]:
    """The target of a board's CPU. Raises BadInput for a machine that nothing is compiled for."""
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
    named = _ARM.get(facts["cpu_ids"][1]) or facts["cpu_name"].lower() or "generic"
    return "-".join("".join(c if c.isalnum() else " " for c in named).split())
