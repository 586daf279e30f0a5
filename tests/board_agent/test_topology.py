"""Cores, caches and pinning, on this machine and on trees of other machines' sysfs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
from hypothesis import given
from hypothesis import strategies as st

from board_agent.topology import FALLBACK_CACHE_BYTES, memory_bytes
from tuner.devices import last_level_cache_bytes, usable_cpus


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def cpu(number: int, name: str) -> str:
    return f"devices/system/cpu/cpu{number}/{name}"


def siblings(*groups: str) -> dict[str, str]:
    """thread_siblings_list for CPUs 0, 1, 2, ..."""
    return {cpu(i, "topology/thread_siblings_list"): text for i, text in enumerate(groups)}


def test_one_cpu_per_core_with_neighbouring_hyperthreads(tmp_path):
    root = write(tmp_path, siblings("0-1", "0-1", "2-3", "2-3"))
    assert sorted(usable_cpus(range(4), root)) == [0, 2]


def test_one_cpu_per_core_with_interleaved_hyperthreads(tmp_path):
    root = write(tmp_path, siblings("0,2", "1,3", "0,2", "1,3"))
    assert sorted(usable_cpus(range(4), root)) == [0, 1]


def test_affinity_decides_which_hyperthread_stands_for_a_core(tmp_path):
    root = write(tmp_path, siblings("0,2", "1,3", "0,2", "1,3"))
    assert sorted(usable_cpus([2, 3], root)) == [2, 3]


def test_fastest_cores_come_first(tmp_path):
    capacities = {cpu(i, "cpu_capacity"): text for i, text in enumerate(["446", "446", "1024", "1024"])}
    root = write(tmp_path, siblings("0", "1", "2", "3") | capacities)
    assert usable_cpus(range(4), root) == [3, 2, 1, 0]


def test_cgroup_quota_shortens_the_list(tmp_path):
    root = write(tmp_path, siblings("0", "1", "2", "3") | {"fs/cgroup/cpu.max": "150000 100000"})
    assert len(usable_cpus(range(4), root)) == 2
    write(tmp_path, {"fs/cgroup/cpu.max": "max 100000"})
    assert len(usable_cpus(range(4), root)) == 4


def test_a_control_group_limits_the_memory(tmp_path):
    whole = memory_bytes(tmp_path)
    assert whole == psutil.virtual_memory().total
    assert memory_bytes(write(tmp_path, {"fs/cgroup/memory.max": "max"})) == whole
    assert memory_bytes(write(tmp_path, {"fs/cgroup/memory.max": "1048576"})) == 1 << 20
    assert memory_bytes(write(tmp_path, {"fs/cgroup/memory.max": str(2 * whole)})) == whole


def test_without_sysfs_every_allowed_cpu_is_a_core(tmp_path):
    assert usable_cpus([3, 5], tmp_path) == [5, 3]
    assert last_level_cache_bytes(tmp_path) == FALLBACK_CACHE_BYTES


@given(st.sets(st.integers(0, 15), min_size=1))
def test_usable_cpus_are_allowed_and_on_distinct_cores(tmp_path_factory, allowed):
    root = tmp_path_factory.mktemp("sys")
    write(root, siblings(*(f"{i % 8},{i % 8 + 8}" for i in range(16))))
    found = usable_cpus(allowed, root)
    assert set(found) <= allowed
    assert sorted(i % 8 for i in found) == sorted({i % 8 for i in allowed})


def test_last_level_cache_is_the_highest_data_level(tmp_path):
    levels = [("1", "Data", "32K"), ("1", "Instruction", "64K"), ("2", "Unified", "1M"), ("3", "Unified", "24576K")]
    for i, (level, kind, size) in enumerate(levels):
        folder = cpu(0, f"cache/index{i}")
        write(tmp_path, {f"{folder}/level": level, f"{folder}/type": kind, f"{folder}/size": size})
    assert last_level_cache_bytes(tmp_path) == 24 << 20


def test_this_machine_has_a_core_and_a_cache():
    assert set(usable_cpus()) <= os.sched_getaffinity(0)
    assert usable_cpus()
    assert last_level_cache_bytes() > 1 << 16


def test_pin_threads_gives_every_thread_one_cpu():
    code = """
import os, threading
from tuner.devices import pin_threads, usable_cpus
stop = threading.Event()
threads = [threading.Thread(target=stop.wait) for _ in range(3)]
for thread in threads: thread.start()
cpus = usable_cpus()
pin_threads(cpus)
masks = {int(tid): os.sched_getaffinity(int(tid)) for tid in os.listdir("/proc/self/task")}
assert len(masks) >= 4
assert masks.pop(os.getpid()) == {cpus[0]}, masks
assert all(mask <= set(cpus[1:] or cpus) and len(mask) == 1 for mask in masks.values()), masks
stop.set()
"""
    # In a process of its own, for it would pin the test run's threads.
    subprocess.run([sys.executable, "-c", code], check=True)
