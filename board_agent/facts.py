"""This module reads the constant properties of the board: start at `facts`.

The functions take the roots of the file systems that they read, so that tests can use the trees of other machines.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from board_agent.topology import SYSFS, last_level_cache_bytes, usable_cpus

PROCFS = Path("/proc")


def facts(sysfs: Path = SYSFS, procfs: Path = PROCFS) -> dict[str, Any]:
    """Return the properties of the board that do not change while the agent runs.

    "cpu_ids" holds the implementer and the part of ARM cores. "cpu_name" is the name of x86 processors.
    """
    cpus = usable_cpus(sysfs=sysfs)
    described = _cpuinfo(procfs)
    return {
        "machine": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cpus": cpus,
        "last_level_cache_bytes": last_level_cache_bytes(sysfs),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "cpu_name": described.get("model name", ""),
        "cpu_ids": [described.get("CPU implementer", ""), described.get("CPU part", "")],
        "cpu_flags": sorted((described.get("flags") or described.get("Features") or "").split()),
        "emulated": emulated(procfs),
        "tvm": tvm_version(),
    }


def tvm_version() -> str:
    """Return the version of the installed TVM, or "" where there is none. TVM is not imported for that."""
    try:
        return version("apache-tvm")
    except PackageNotFoundError:
        return ""


def _cpuinfo(procfs: Path) -> dict[str, str]:
    """Read /proc/cpuinfo and return the first value of each name."""
    found: dict[str, str] = {}
    for line in (procfs / "cpuinfo").read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found


def emulated(procfs: Path = PROCFS) -> bool:
    """Tell whether qemu's user mode runs this process, so that its times mean nothing.

    Under qemu, /proc/cpuinfo is that of the real machine and lacks a field that the emulated architecture would have.
    """
    described = (procfs / "cpuinfo").read_text(errors="replace")
    marks = {"aarch64": "CPU implementer", "x86_64": "vendor_id"}
    mark = marks.get(platform.machine())
    return (mark is not None and mark not in described) or "qemu" in described.lower()
