"""From a scheduled function to a shared object. Start at `build_shared`; `check_toolchain` tells whether it can work.

LLVM writes the object file and the plain linker makes a shared object of it in 3 ms, where the C compiler's driver
takes 15 and TVM's export_library compiles the function a second time. What it refers to (memset, expf) is found in
the process that loads it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.lowering import lowering_context
from tuner.errors import BadInput

ENTRY = "main"  # the exported function of every library built here

# Linkers proper first; a compiler's driver does the same, slower.
_LINKERS = ("ld", "ld.lld", "ld.gold", "mold", "cc", "gcc", "clang")
_PREFLIGHT_CHUNK = 64


def check_toolchain() -> str:
    """The path of the linker that measuring uses. Raises BadInput, naming what to install, if there is none."""
    for name in _LINKERS:
        path = shutil.which(name)
        if path is not None:
            return path
    raise BadInput(
        f"no linker found (looked for {', '.join(_LINKERS)} in PATH): install a C toolchain, such as gcc or binutils"
    )


def build_shared(func: tirx.PrimFunc, target: Target, library: Path, linker: str) -> None:
    """Compile a scheduled function for the host and link it to `library`, entry point `ENTRY`.

    Raises what TVM raises, OSError if a file cannot be written, and RuntimeError if the linker fails.
    """
    with lowering_context():
        module = tvm.tirx.build(func.with_attr("global_symbol", ENTRY), target=target)
    compiled = library.with_suffix(".o")
    try:
        module.write_to_file(str(compiled), "o")
        command = [linker, "-shared", "-z", "noexecstack", "-o", str(library), str(compiled)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    finally:
        compiled.unlink(missing_ok=True)
    if done.returncode:
        raise RuntimeError(f"{linker} failed: {done.stderr.strip() or f'status {done.returncode}'}")


def preflight_length(threads: int) -> int:
    return threads * _PREFLIGHT_CHUNK


def preflight_func(threads: int) -> tirx.PrimFunc:
    """out = data + 1 over `preflight_length(threads)` float32 values, in parallel: the smallest kernel that uses
    everything that measuring needs (code generation, linker, loader, thread pool)."""
    data = te.placeholder((threads, _PREFLIGHT_CHUNK), name="data", dtype="float32")
    out = te.compute(data.shape, lambda i, j: data[i, j] + tirx.const(1, "float32"), name="out")
    schedule = Schedule(te.create_prim_func([data, out]))
    rows, columns = schedule.get_loops(schedule.get_sblock("out"))
    schedule.parallel(rows)
    schedule.vectorize(columns)
    return schedule.mod["main"]
