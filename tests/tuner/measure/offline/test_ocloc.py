"""Intel's offline compiler on small kernels: registers that do not fit, local memory, errors."""

from __future__ import annotations

import pytest

from tests.tuner.measure.offline.support import compiler_or_skip
from tuner.errors import BadInput, CompileError
from tuner.measure.offline.ocloc import Ocloc, resources

LOCAL = """__kernel void copy(__global float* a) {
  __local float t[1000];
  t[get_local_id(0)] = a[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  a[get_global_id(0)] = t[999 - get_local_id(0)];
}
__kernel void twice(__global float* a) { a[get_global_id(0)] *= 2; }"""


def crowded(count: int) -> str:
    """A kernel that keeps `count` values through a loop."""
    turns = range(count)
    lines = ["__kernel void crowded(__global float* restrict a, __global float* restrict b, int n) {"]
    lines += ["int g = get_global_id(0);", *(f"float x{i} = a[g * {count} + {i}];" for i in turns)]
    lines += ["for (int k = 0; k < n; k++) {", "float y = b[k * 16 + g];"]
    lines += [*(f"x{i} = x{i} * y + b[k + {i} + n * g];" for i in turns), "}"]
    lines += [*(f"a[g * {count} + {i}] = x{i};" for i in turns), "}"]
    return "\n".join(lines)


@pytest.mark.parametrize("profile", ["intel-hd505", "intel-xe"])
def test_each_kernels_resources_are_read(profile):
    found = compiler_or_skip(profile, "ocloc").compile(LOCAL)
    assert set(found) == {"copy", "twice"}
    assert found["copy"].local_bytes >= 4000
    assert found["twice"].local_bytes == 0
    for kernel in found.values():
        assert kernel.subgroup in (8, 16, 32)
        assert kernel.registers == 128
        assert (kernel.spill_bytes, kernel.private_bytes) == (0, 0)
        assert kernel.binary_bytes > 0


def test_registers_that_do_not_fit_are_spilled():
    ocloc = compiler_or_skip("intel-hd505", "ocloc")
    roomy, crowd = ocloc.compile(crowded(20))["crowded"], ocloc.compile(crowded(160))["crowded"]
    assert roomy.spill_bytes == 0
    assert 0 < crowd.spill_bytes <= crowd.private_bytes


def test_an_error_is_one_line():
    with pytest.raises(CompileError, match=r"ocloc: .*error") as caught:
        compiler_or_skip("intel-xe", "ocloc").compile("__kernel void k(__global float* a) { a[0] = ; }")
    assert "\n" not in str(caught.value)


def test_a_missing_ocloc_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match=r"ocloc is not installed.*apt-get install intel-opencl-icd"):
        Ocloc("bxt")


def test_figures_are_read_from_a_binarys_description():
    """An ELF file made here, with a description as ocloc 22.43 writes it: needs no ocloc."""
    description = """---
version: '1.20'
kernels:
  - name:            spills
    execution_env:
      barrier_count:   1
      grf_count:       128
      simd_size:       8
      slm_size:        4096
    per_thread_memory_buffers:
      - type:            scratch
        usage:           single_space
        size:            1024
kernels_misc_info:
  - name:            spills
"""
    log = "warning: kernel spills  compiled SIMD8 allocated 128 regs and spilled around 10\n\nBuild succeeded.\n"
    (found,) = resources(elf({".ze_info": description.encode(), ".text.spills": b"x" * 320}), log).values()
    assert (found.registers, found.subgroup, found.local_bytes, found.binary_bytes) == (128, 8, 4096, 320)
    assert found.spill_bytes == 10 * 32 // 8
    assert found.private_bytes == 1024 // 8


def elf(sections: dict[str, bytes]) -> bytes:
    """A 64-bit ELF file with these sections and nothing else."""
    names = b"\0" + b"\0".join(name.encode() for name in (*sections, ".strtab")) + b"\0"
    bodies = [b"", *sections.values(), names]
    table = b""
    at = 64
    for name, body in zip(("", *sections, ".strtab"), bodies, strict=True):
        place = names.index(name.encode() + b"\0") if name else 0
        words = (place, 1, 0, 0, at, len(body), 0, 0, 1, 0)
        sizes = (4, 4, 8, 8, 8, 8, 4, 4, 8, 8)
        table += b"".join(word.to_bytes(size, "little") for word, size in zip(words, sizes, strict=True))
        at += len(body)
    header = b"\x7fELF\x02\x01\x01" + bytes(33) + at.to_bytes(8, "little") + bytes(10)
    header += b"".join(n.to_bytes(2, "little") for n in (64, len(bodies), len(bodies) - 1))
    return header + b"".join(bodies) + table
