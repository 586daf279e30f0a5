"""What a board says of itself, read from trees of other machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from board_agent.facts import facts

ARM = "processor : 0\nFeatures : fp asimd crc32\nCPU implementer : 0x41\nCPU part : 0xd08\n"
X86 = "processor : 0\nvendor_id : GenuineIntel\nmodel name : Atom\nflags : fpu sse2 avx2\n"


def proc(folder: Path, cpuinfo: str) -> Path:
    (folder / "cpuinfo").write_text(cpuinfo)
    return folder


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
