"""Kernels for another processor, run by qemu: many in one program. `run_emulated` is for those of anchors."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule
from tvm.target import Target

from templates.lowering import compiled, finished
from templates.reference import Operands
from tests.templates.support import Compiled
from tuner.export.compiling import toolchain_for
from tuner.measure.codegen.toolchain import machine_of

_SOURCE = Path(__file__).parent / "emulated_kernels.c"
_RUNTIME = Path(__file__).parents[2] / "tuner" / "export" / "runtime"

needs_qemu = pytest.mark.skipif(
    shutil.which("qemu-aarch64") is None or find_spec("ziglang") is None, reason="needs qemu-aarch64 and ziglang"
)


def program_of(scheduled: Sequence[tirx.PrimFunc], target: Target, folder: Path) -> Path:
    """A program for a target that calls all of these functions, with what it reads from standard input."""
    functions = {}
    for i, func in enumerate(scheduled):
        functions[f"kernel_{i}"] = finished(func, target).with_attr("global_symbol", f"kernel_{i}")
    compiled(IRModule(functions), target).write_to_file(str(folder / "kernels.o"), "o")
    names = [f"__tvm_ffi_{name}" for name in functions]
    table = [f"extern int {name}(void *, const Any *, int32_t, Any *);" for name in names]
    table += [f"const Kernel kernels[] = {{{', '.join(names)}}};", f"const int kernel_count = {len(names)};"]
    (folder / "table.c").write_text("\n".join(['#include "network.h"', *table, ""]))
    sources = [str(_SOURCE), str(folder / "table.c"), str(folder / "kernels.o")]
    command = [*toolchain_for(machine_of(target), "musl").compiler, "-static", "-O1", f"-I{_RUNTIME}", *sources, "-lm"]
    done = subprocess.run([*command, "-o", str(folder / "kernels")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "kernels"


def call_emulated(program: Path, given: Sequence[Sequence[np.ndarray]], cpu: str) -> list[np.ndarray]:
    """Run a program, and return what each of its functions writes to the last of the arrays that it is given, as qemu's
    `cpu` computes it."""
    sent = b"".join(map(_sent, given))
    done = subprocess.run(["qemu-aarch64", "-cpu", cpu, str(program)], input=sent, capture_output=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    results, at = [], 0
    for *_, out in given:
        results.append(np.frombuffer(done.stdout, out.dtype, out.size, at).reshape(out.shape))
        at += out.nbytes
    assert at == len(done.stdout)
    return results


def run_emulated(
    kernels: Sequence[Compiled], inputs: Sequence[Operands], shapes: Sequence[tuple[int, ...]], folder: Path, cpu: str
) -> list[np.ndarray]:
    """The results of kernels for one target on their operands, in plain layout, as qemu's `cpu` computes them. The
    program in the folder is used if there is one."""
    program = folder / "kernels"
    if not program.exists():
        functions = [k.template.prim_func(k.workload, k.target, k.config) for k in kernels]
        program = program_of(functions, kernels[0].target, folder)
    given = [k.arrays(i, shape) for k, i, shape in zip(kernels, inputs, shapes, strict=True)]
    results = call_emulated(program, given, cpu)
    return [k.plain(result, shape) for k, result, shape in zip(kernels, results, shapes, strict=True)]


def _sent(arrays: Sequence[np.ndarray]) -> bytes:
    """A kernel's operands as the program reads them."""
    parts = [struct.pack("<i", len(arrays))]
    for array in arrays:
        dtype = tvm_ffi.dtype(str(array.dtype))
        parts.append(struct.pack("<3i", dtype.type_code, dtype.bits, array.ndim))
        parts.append(struct.pack(f"<{array.ndim + 1}q", *array.shape, array.nbytes))
        parts.append(np.ascontiguousarray(array).tobytes())
    return b"".join(parts)
