"""What a board says of itself, read from trees of other machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from board_agent.facts import condition, facts, was_throttled

ARM = "processor : 0\nFeatures : fp asimd crc32\nCPU implementer : 0x41\nCPU part : 0xd08\n"
X86 = "processor : 0\nvendor_id : GenuineIntel\nmodel name : Atom\nflags : fpu sse2 avx2\n"


def proc(folder: Path, cpuinfo: str) -> Path:
    (folder / "cpuinfo").write_text(cpuinfo)
    (folder / "meminfo").write_text("MemTotal: 4000 kB\nMemAvailable: 1000 kB\n")
    return folder


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "ids", "flags", "emulated"),
    [
        ("aarch64", ARM, ["0x41", "0xd08"], ["asimd", "crc32", "fp"], False),
        ("x86_64", X86, ["", ""], ["avx2", "fpu", "sse2"], False),
        ("aarch64", X86, ["", ""], ["avx2", "fpu", "sse2"], True),  # what qemu lets through from below
        ("riscv64", X86, ["", ""], ["avx2", "fpu", "sse2"], False),
    ],
)
def test_what_does_not_change(tmp_path: Path, monkeypatch, machine, cpuinfo, ids, flags, emulated) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    found = facts(procfs=proc(tmp_path, cpuinfo))
    assert (found["machine"], found["cpu_ids"], found["cpu_flags"]) == (machine, ids, flags)
    assert found["emulated"] is emulated
    assert found["memory_bytes"] > 0


def test_how_it_feels(tmp_path: Path) -> None:
    cores, zones = tmp_path / "devices/system/cpu", tmp_path / "class/thermal"
    for core, khz in enumerate((1500000, 600000)):
        write(cores / f"cpu{core}/cpufreq/scaling_cur_freq", khz)
        write(cores / f"cpu{core}/thermal_throttle/core_throttle_count", 2 + core)
    write(zones / "thermal_zone0/temp", 48250)
    write(zones / "thermal_zone1/temp", "asleep")
    assert condition(tmp_path, proc(tmp_path, ARM)) == {
        "free_bytes": 1000 * 1024,
        "mhz": {"cpu0": 1500, "cpu1": 600},
        "degrees": {"thermal_zone0": 48.25},
        "throttled": 5,
    }


def test_what_the_system_does_not_tell_is_not_there(tmp_path: Path) -> None:
    assert condition(tmp_path, proc(tmp_path, ARM)) == {"free_bytes": 1000 * 1024}


@pytest.mark.parametrize(
    ("before", "after", "slower"),
    [
        ({}, {}, False),
        ({"mhz": {"cpu0": 1500}}, {"mhz": {"cpu0": 1400}}, False),
        ({"mhz": {"cpu0": 1500}}, {"mhz": {"cpu0": 600}}, True),
        ({"mhz": {"cpu0": 600}}, {"mhz": {"cpu0": 1500}}, False),
        ({"throttled": 3}, {"throttled": 3}, False),
        ({"throttled": 3}, {"throttled": 4}, True),
    ],
)
def test_a_board_that_slowed_down(before, after, slower: bool) -> None:
    assert was_throttled(before, after) is slower
