"""What the board is, and how it feels: clocks, temperature, memory. Readers take the roots they read from."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from board_agent.topology import SYSFS, last_level_cache_bytes, usable_cpus

PROCFS = Path("/proc")


def facts(sysfs: Path = SYSFS, procfs: Path = PROCFS) -> dict[str, Any]:
    """What does not change while the agent runs. "cpu_ids": implementer and part of ARM cores, "cpu_name" of x86's."""
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
    }


def condition(sysfs: Path = SYSFS, procfs: Path = PROCFS) -> dict[str, Any]:
    """What changes: "mhz" of each core (kernel's word), degrees Celsius by sensor, how often cores were throttled since
    boot, free bytes. What the system does not tell is not there."""
    cores = sysfs / "devices/system/cpu"
    found: dict[str, Any] = {"free_bytes": _free(procfs)}
    mhz = {p.parent.parent.name: int(v) / 1000 for p, v in _numbers(cores, "cpu[0-9]*/cpufreq/scaling_cur_freq")}
    degrees = {p.parent.name: int(v) / 1000 for p, v in _numbers(sysfs / "class/thermal", "thermal_zone*/temp")}
    throttled = [int(v) for _, v in _numbers(cores, "cpu[0-9]*/thermal_throttle/*_throttle_count")]
    for name, value in (("mhz", mhz), ("degrees", degrees), ("throttled", sum(throttled) if throttled else None)):
        if value not in ({}, None):
            found[name] = value
    return found


def was_throttled(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether the system slowed a core down between two conditions: it counted so, or a clock fell by a tenth."""
    if after.get("throttled", 0) > before.get("throttled", 0):
        return True
    earlier = before.get("mhz", {})
    return any(mhz < 0.9 * earlier.get(core, 0) for core, mhz in after.get("mhz", {}).items())


def _numbers(folder: Path, pattern: str) -> list[tuple[Path, str]]:
    found = []
    for path in sorted(folder.glob(pattern)):
        try:
            text = path.read_text().strip()
        except OSError:  # a sensor that is asleep
            continue
        if text.lstrip("-").isdigit():
            found.append((path, text))
    return found


def _cpuinfo(procfs: Path) -> dict[str, str]:
    """The first value of each name."""
    found: dict[str, str] = {}
    for line in (procfs / "cpuinfo").read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found


def _free(procfs: Path) -> int:
    for line in (procfs / "meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return 0


def emulated(procfs: Path = PROCFS) -> bool:
    """Whether qemu's user mode runs this process: its times mean nothing. The kernel of the machine below shows through
    where the emulated one would have other fields."""
    described = (procfs / "cpuinfo").read_text(errors="replace")
    marks = {"aarch64": "CPU implementer", "x86_64": "vendor_id"}
    mark = marks.get(platform.machine())
    return (mark is not None and mark not in described) or "qemu" in described.lower()
