"""This module reads cores and caches from sysfs and pins threads. Start at `usable_cpus` and `pin_threads`.

Cores are named by their logical CPU numbers. The functions take the roots of the file systems that they read, so that
tests can use the trees of other machines.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

SYSFS = Path("/sys")
FALLBACK_CACHE_BYTES = 32 << 20  # used where sysfs has no cache sizes, as on many boards; it is enough for all of them

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _cpu_list(text: str) -> list[int]:
    """Parse a kernel's CPU list such as "0-3,8" into numbers."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def _quota_cpus(sysfs: Path) -> int | None:
    """Return how many CPUs' time the control group allows (cgroup v2), rounded up, or None without a limit."""
    quota, _, period = (_read(sysfs / "fs/cgroup/cpu.max") or "max").partition(" ")
    return None if quota == "max" else max(1, math.ceil(int(quota) / int(period)))


def usable_cpus(allowed: Iterable[int] | None = None, sysfs: Path = SYSFS) -> list[int]:
    """Return the logical CPUs to compute on: one for each physical core that this process may use, fastest first.

    `allowed` is the affinity mask (by default that of this process). A control group's CPU quota shortens the list.
    Among equal cores the higher numbers come first, because interrupts are mostly served by the lowest.
    """
    left = set(os.sched_getaffinity(0) if allowed is None else allowed)
    cpus = sysfs / "devices/system/cpu"
    cores = []
    for cpu in sorted(left):
        if cpu in left:
            siblings = _read(cpus / f"cpu{cpu}/topology/thread_siblings_list")
            left.difference_update(set(_cpu_list(siblings or "")) - {cpu})
            cores.append(cpu)
    cores.sort(key=lambda cpu: (-int(_read(cpus / f"cpu{cpu}/cpu_capacity") or 0), -cpu))
    return cores[: _quota_cpus(sysfs)]


def memory_bytes(sysfs: Path = SYSFS) -> int:
    """Return the bytes of main memory that this process may use: all, or what its control group allows (cgroup v2)."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    allowed = _read(sysfs / "fs/cgroup/memory.max") or "max"
    return whole if allowed == "max" else min(whole, int(allowed))


def last_level_cache_bytes(sysfs: Path = SYSFS) -> int:
    """Return the size of the last cache level that holds data, or `FALLBACK_CACHE_BYTES` where sysfs does not say."""
    sizes: dict[int, int] = {}
    for index in (sysfs / "devices/system/cpu").glob("cpu*/cache/index*"):
        level, kind, size = (_read(index / name) for name in ("level", "type", "size"))
        if level and size and kind != "Instruction":
            value = int(size[:-1]) * _UNITS[size[-1]] if size[-1] in _UNITS else int(size)
            sizes[int(level)] = max(value, sizes.get(int(level), 0))
    return sizes[max(sizes)] if sizes else FALLBACK_CACHE_BYTES


def pin_current_process(cpus: Iterable[int]) -> None:
    """Restrict every thread of this process to `cpus` (any of them)."""
    mask = set(cpus)
    for tid in threads():
        os.sched_setaffinity(tid, mask)


def threads() -> set[int]:
    """Return the thread ids of this process."""
    return set(map(int, os.listdir("/proc/self/task")))


def spread(workers: Iterable[int]) -> None:
    """Pin each of a driver's threads to its own core, if there are as many threads as cores.

    Otherwise two of them share a core for seconds at a time, see `pin_threads`.
    """
    found, cpus = sorted(workers), sorted(os.sched_getaffinity(0))
    if len(found) == len(cpus):
        for worker, cpu in zip(found, cpus):
            _hold(worker, cpu)


def pin_threads(cpus: Sequence[int]) -> None:
    """Pin the main thread to the first of `cpus` and every other thread to one of the rest, in turn.

    TVM's pool starts its threads at the first parallel call, so call this after one. Without pinning, two of them share
    a core for seconds at a time while another core idles.
    """
    rest = cpus[1:] or cpus[:1]
    others = sorted(threads() - {os.getpid()})
    os.sched_setaffinity(os.getpid(), {cpus[0]})
    for place, tid in enumerate(others):
        _hold(tid, rest[place % len(rest)])


def _hold(thread: int, cpu: int) -> None:
    # The thread may have ended, or belong to an emulator and have stayed root when the process became nobody.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.sched_setaffinity(thread, {cpu})
