"""The loop where a kernel's time goes, in texts of compilers."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import tvm
from tvm.target import Target

from templates.gpu.lowered import lower
from templates.lowering import build
from templates.template import search_space, template_named
from templates.workloads import Conv2d, Dense
from tests.tuner.measure.offline.support import compilers_or_skip, multiplications
from tuner.devices.profiles import profile_named
from tuner.report.hot_loop import in_assembly, in_source, marked
from tuning_db.record import Workload

CONV = Conv2d(1, 32, 14, 14, 32, (3, 3), (1, 1), (1, 1, 1, 1)).workload(("bias", "relu"))
HALF = Conv2d(1, 32, 14, 14, 32, (3, 3), (1, 1), (1, 1, 1, 1)).workload((), "float16")
DENSE = Dense(8, 64, 64).workload(("bias",))
TARGETS = {
    "avx512": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver4"},
    "avx2": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"},
    "neon": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"},
}
FMA = {"avx512": "vfmadd", "avx2": "vfmadd", "neon": "fmla"}
REGISTERS = {"avx512": 32, "avx2": 16, "neon": 32}

X86 = """main:
\tmovq\t%rdi, %rax
.LBB0_1:
\tvmovups\t(%rsi), %ymm0
.LBB0_2:
\tvbroadcastss\t(%rdi,%rax,4), %ymm1
\tvfmadd231ps\t(%rsi), %ymm1, %ymm2
\tvfmadd231ps\t%ymm1, %ymm3, %ymm4
\tvmovups\t%ymm4, 32(%rsp)
\tvaddps\t64(%rsp), %ymm4, %ymm5
\tincq\t%rax
\tjne\t.LBB0_2
\tdecq\t%rcx
\tjne\t.LBB0_1
.LBB0_3:
\tvaddps\t%ymm2, %ymm4, %ymm2
\tjb\t.LBB0_3
\tretq
"""


def test_the_innermost_loop_with_the_multiply_adds_is_found_and_counted():
    loop = in_assembly(X86)
    assert loop is not None
    assert (loop.first, loop.last) == (4, 11)
    assert (loop.instructions, loop.multiply_adds, loop.registers) == (7, 2, 5)
    assert (loop.stack_stores, loop.stack_loads) == (1, 1)
    lines = marked(X86, loop).splitlines()
    assert [i for i, line in enumerate(lines) if line.startswith(">")] == list(range(4, 12))
    assert [line[2:] for line in lines] == X86.splitlines()


def test_the_base_pointer_is_the_stacks_where_a_frame_begins_at_it():
    moved = X86.replace("%rsp", "%rbp")
    for text, counts in ((moved, (0, 0)), (moved.replace("movq\t%rdi, %rax", "movq\t%rsp, %rbp"), (1, 1))):
        loop = in_assembly(text)
        assert loop is not None
        assert (loop.stack_stores, loop.stack_loads) == counts


@pytest.mark.parametrize(("begun", "loads"), [("mov\tx29, sp", 1), ("add\tx29, sp, #64", 1), ("add\tx29, x0, #64", 0)])
def test_x29_is_the_stacks_where_a_frame_begins_at_it(begun: str, loads: int) -> None:
    text = f"main:\n\t{begun}\n.L0:\n\tldr\tq0, [x29, #16]\n\tfmla\tv1.4s, v0.4s, v2.4s\n\tb.ne\t.L0\n"
    loop = in_assembly(text)
    assert loop is not None
    assert (loop.stack_stores, loop.stack_loads) == (0, loads)


@pytest.mark.parametrize(
    "line",
    [
        "\tvpmaddwd\t%ymm1, %ymm3, %ymm4",
        "\tvpdpbusd\t(%rsi){1to16}, %zmm1, %zmm2",
        "\t{vex}\tvpdpbusd\t%ymm1, %ymm3, %ymm4",
        "\tsdot\tv6.4s, v7.16b, v13.16b",
        "\tusdot\tv6.4s, v7.16b, v13.16b",
        "\tsmull\tv22.8h, v18.8b, v17.8b",
        "\tbfdot\tv6.4s, v7.8h, v13.8h",
        "\tvdpbf16ps\t(%rsi){1to16}, %zmm1, %zmm2",
    ],
)
def test_dot_products_are_multiply_adds(line: str) -> None:
    loop = in_assembly(f".L0:\n{line}\n\tjne\t.L0\n")
    assert loop is not None
    assert loop.multiply_adds == 1


def test_texts_without_such_a_loop_have_none():
    assert in_assembly("main:\n\tvfmadd231ps\t%ymm1, %ymm2, %ymm3\n\tretq\n") is None
    assert in_assembly(".L1:\n\tincq\t%rax\n\tjne\t.L1\n") is None
    assert in_source("__kernel void f() {\n  c[0] = a[0] * b[0] + c[0];\n}\n") is None
    assert in_source("for (int i = 0; i < 4; ++i) {\n  c[i + 2 * j] = a[i * 4 + j];\n}\n") is None


def test_of_two_loops_of_a_source_the_one_that_multiplies_is_hot():
    text = """__kernel void f() {
  for (int i = 0; i < 4; ++i) {
    acc[i] = 0.0f;
  }
  for (int k = 0; k < 64; ++k) {
    for (int i = 0; i < 4; ++i) {
      acc[i] = acc[i] + a[k * 4 + i] * b[k];
    }
  }
}
"""
    loop = in_source(text)
    assert loop is not None
    assert (loop.first, loop.last, loop.multiply_adds) == (5, 7, 1)


def _built(name: str) -> tuple[tvm.runtime.Module, str]:
    target = Target(TARGETS[name])
    space = search_space(CONV, target)
    assert space is not None
    config = space.seed_configs()[0]
    func = template_named(config.template).prim_func(CONV, target, config)
    module = build(func.with_attr("global_symbol", "main"), target)
    return module, str(module.inspect_source("asm"))


@pytest.mark.parametrize("name", TARGETS)
def test_a_convolution_spends_its_time_in_multiply_adds_on_registers(name: str):
    _, text = _built(name)
    loop = in_assembly(text)
    assert loop is not None
    body = text.splitlines()[loop.first : loop.last + 1]
    assert sum(FMA[name] in line for line in body) == loop.multiply_adds
    assert loop.multiply_adds > loop.instructions / 3
    assert loop.registers is not None
    assert REGISTERS[name] / 4 < loop.registers <= REGISTERS[name]


@pytest.mark.parametrize("name", ["avx512", "avx2"])
def test_what_is_counted_in_the_text_is_what_is_in_the_machine_code(name: str, tmp_path: Path):
    module, text = _built(name)
    loop = in_assembly(text)
    assert loop is not None
    module.write_to_file(str(tmp_path / "main.o"), "o")
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", tmp_path / "main.o"], capture_output=True, text=True, check=True
    ).stdout
    assert len(re.findall(r"\tvfn?m(?:add|sub)\w+p[sd] ", listing)) == len(
        re.findall(r"\tvfn?m(?:add|sub)\w+p[sd]\t", text)
    )
    encoded = [line.split("\t")[1].split()[0] for line in listing.splitlines() if line.count("\t") == 1]
    written = [line.split()[0] for line in text.splitlines()[loop.first : loop.last + 1] if re.match(r"\s+[a-z]", line)]
    assert _vectors(written) in _vectors(encoded)


def test_what_is_counted_for_neon_is_in_its_machine_code(tmp_path: Path):
    reader = shutil.which("aarch64-linux-gnu-objdump") or shutil.which("llvm-objdump")
    if reader is None:
        pytest.skip("nothing here reads code for aarch64: apt-get install binutils-aarch64-linux-gnu")
    module, text = _built("neon")
    loop = in_assembly(text)
    assert loop is not None
    module.write_to_file(str(tmp_path / "main.o"), "o")
    command = [reader, "-d", "--no-show-raw-insn", tmp_path / "main.o"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    encoded = "".join("x" if re.search(r"\tfml[as]\s", line) else "." for line in listing.splitlines() if "\t" in line)
    body = [line for line in text.splitlines()[loop.first : loop.last + 1] if re.match(r"\s+[a-z]", line)]
    written = "".join("x" if re.match(r"\s+fml[as]\s", line) else "." for line in body)
    assert written.count("x") == loop.multiply_adds
    assert written in encoded


def _vectors(mnemonics: list[str]) -> str:
    """The vector instructions, in order."""
    return " ".join(word for word in mnemonics if word.startswith("v"))


def _source(profile: str, workload: Workload, template: str) -> str:
    """Of the template's author's best guess."""
    target = profile_named(profile).target()
    space = search_space(workload, target)
    assert space is not None
    config = next(config for config in space.seed_configs() if config.template == template)
    return lower(template_named(template).prim_func(workload, target, config), target).source()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("profile", "workload", "template"),
    [
        ("mali-t860", CONV, "gpu.conv2d_direct"),
        ("mali-t860", CONV, "mali.conv2d_spatial_pack"),
        ("mali-t860", CONV, "gpu.conv2d_winograd"),
        ("intel-hd505", DENSE, "gpu.dense"),
        ("intel-hd505", HALF, "gpu.conv2d_direct"),
        ("jetson-orin", CONV, "gpu.conv2d_direct"),
        ("jetson-orin", HALF, "gpu.conv2d_direct"),
        ("jetson-orin", HALF, "gpu.conv2d_tensor_core"),
    ],
)
def test_the_multiply_adds_of_a_source_are_those_that_its_compiler_makes(
    profile: str, workload: Workload, template: str
):
    device = profile_named(profile)
    source = _source(profile, workload, template)
    for compiler in compilers_or_skip(device):
        compiler.compile(source)  # it is the text that the compiler takes
    loop = in_source(source)
    assert loop is not None
    assert source.splitlines()[loop.first].strip().startswith("for (")
    assert loop.multiply_adds in multiplications(source, device if device.limits.kind == "cuda" else None)


def test_arithmetic_of_places_in_memory_is_no_multiply_add():
    assert (
        in_source("""__kernel void f() {
  for (int i = 0; i < 4; ++i) {
    float4 a = vload4(0, data + ((i * 4) + (get_local_id(0) * 16)));
    local[((i * 4) + 1)] = *(float4*)(data + ((i * 4) + 1));
    int2 v = (int2)((1)+(1*0), (1)+(1*1));
    vstore4(a, 0, out + ((i * 4) + 1));
    acc[i] = 0x0p+0f/*0.0e+00*/;
  }
}
""")
        is None
    )
