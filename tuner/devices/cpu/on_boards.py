"""Describes the CPU of a board. Its target is put together from what the agent reports: a board has no compiler that
could be asked. Start at `CpuOnBoards`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.target import Target

from tuner.devices.base import Device
from tuner.devices.cpu.host import family
from tuner.devices.keys import unless_emulated
from tuner.devices.kind import OnBoards
from tuner.errors import BadInput
from tuning_db.record import DeviceKey

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
# Features for types of numbers, and Linux's names of them. Of a core that LLVM knows it knows them, too.
_TYPES = {"+fullfp16": "asimdhp", "+bf16": "bf16"}
# The levels of the x86-64 ABI, by flags that the kernel reports and that no lower level has.
_X86 = (("x86-64-v4", {"avx512f", "avx512bw", "avx512dq", "avx512vl"}), ("x86-64-v3", {"avx2", "fma", "bmi2"}))


class CpuOnBoards(OnBoards):
    """Describes the CPUs of boards, where TVM's runtime calls the functions."""

    form = "library"

    def listed(self, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        return {"cpu": {}}

    def device(self, name: str, facts: dict[str, Any], described: dict[str, Any], threads: int | None) -> Device:
        """Return the CPU that reports these facts. Raises BadInput for more threads than it has, and for an
        architecture that nothing is compiled for."""
        cores = len(facts["cpus"])
        count = cores if threads is None else threads
        if not 1 <= count <= cores:
            raise BadInput(
                f"{count} threads were asked for, but {name} has {cores} physical core(s): give 1 to {cores}"
            )
        target = Target(cpu_of(facts, count))
        return Device(name, target, key_of(facts, target, count), count, int(facts["last_level_cache_bytes"]))

    def key(self, facts: dict[str, Any], described: dict[str, Any], target: Target, threads: int) -> DeviceKey:
        return key_of(facts, target, threads)


def key_of(facts: dict[str, Any], target: Target, threads: int) -> DeviceKey:
    """Return the key of a board's CPU in the tuning database."""
    known = {"threads": threads, "last_level_cache_bytes": int(facts["last_level_cache_bytes"])}
    key = DeviceKey("cpu", family(str(facts["machine"]), target), _model(facts), known)
    return unless_emulated(key, bool(facts.get("emulated")))


def cpu_of(facts: dict[str, Any], threads: int) -> dict[str, Any]:
    """Return the target of a board's CPU. Raises BadInput for a machine that nothing is compiled for."""
    machine = facts["machine"]
    if machine == "aarch64":
        known = _ARM.get(facts["cpu_ids"][1])
        more = [] if known else [name for name, flag in _TYPES.items() if flag in facts["cpu_flags"]]
        return {
            "kind": "llvm",
            "mtriple": "aarch64-linux-gnu",
            "mcpu": known or "generic",
            "mattr": ["+neon", *more],
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
