"""Compare the instruction sets that a module's code uses with those that this machine, or a board, has. Start at
`required_features` and `missing_features`.

Code for AVX-512 dies of an illegal instruction on a machine without AVX-512, so loading compares the two lists first.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

from board_agent.facts import PROCFS, emulated

# Maps LLVM's names (as in targets) to the Linux kernel's (as in /proc/cpuinfo), for the instruction sets that LLVM
# vectorises with.
_X86 = {
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "avx": "avx",
    "avx2": "avx2",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "f16c": "f16c",
    "fma": "fma",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avxvnni": "avx_vnni",
}
_ARM = {
    "neon": "asimd",
    "dotprod": "asimddp",
    "i8mm": "i8mm",
    "fullfp16": "asimdhp",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
}
_RISCV = {"zve64d": "v"}
_NAMES = {**_X86, **_ARM, **_RISCV}


def required_features(target: Target) -> tuple[str, ...]:
    """Return the instruction sets that code for a CPU target may use, by LLVM's names."""
    has = tvm.get_global_func("target.target_has_feature")
    return tuple(name for name in _NAMES if has(name, target))


def missing_features(required: tuple[str, ...], procfs: Path = PROCFS) -> list[str]:
    """Return those of the `required` instruction sets that this machine lacks, or none if the system does not list its
    own. On an emulated processor the system lists what the machine below has, so only the architecture is known."""
    try:
        lines = (procfs / "cpuinfo").read_text().splitlines()
    except OSError:
        return []
    flags = {
        flag
        for line in lines
        if line.partition(":")[0].strip() in ("flags", "Features")
        for flag in line.partition(":")[2].split()
    }
    return _missing(required, platform.machine(), flags, is_emulated=emulated(procfs))


def missing_on_board(required: tuple[str, ...], facts: Mapping[str, Any]) -> list[str]:
    """Return those of the `required` instruction sets that the board of these facts lacks; see `missing_features`."""
    return _missing(required, facts["machine"], facts["cpu_flags"], is_emulated=bool(facts.get("emulated")))


def _missing(required: tuple[str, ...], machine: str, flags: Collection[str], *, is_emulated: bool) -> list[str]:
    if is_emulated:
        own = _ARM if machine == "aarch64" else _X86
        return [name for name in required if name not in own]
    return [name for name in required if flags and _NAMES.get(name, name) not in flags]
