"""Turns a scheduled function into a shared object. Start at `build_shared`; `check_toolchain` tells whether that can
work.

LLVM writes the object file, and the plain linker makes a shared object of it in 3 ms. The C compiler's driver would
take 15 ms, and TVM's export_library would compile the function a second time. Symbols that the code refers to (memset,
expf) are found in the process that loads it.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.lowering import build
from tuner.errors import BadInput

ENTRY = "main"  # the exported function of every library built here

# Linkers proper come first; a compiler's driver does the same, but slower.
_LINKERS = ("ld", "ld.lld", "ld.gold", "mold", "cc", "gcc", "clang")
_PREFLIGHT_CHUNK = 64
_PREFLIGHT_TIMES = 1 << 14


def check_toolchain(target: Target | None = None) -> str:
    """Return the path of the linker that measuring uses (default: for this machine). Raises BadInput, naming what to
    install, if there is none."""
    if target is not None and (machine := machine_of(target)) != platform.machine():
        return _cross_linker(machine, str(target.attrs["mtriple"]))
    for name in _LINKERS:
        path = shutil.which(name)
        if path is not None:
            return path
    raise BadInput(
        f"no linker found (looked for {', '.join(_LINKERS)} in PATH): install a C toolchain, such as gcc or binutils"
    )


def machine_of(target: Target) -> str:
    """Return the architecture that a target's code for a CPU runs on."""
    return str(target.attrs.get("mtriple", "")).partition("-")[0] or platform.machine()


def _cross_linker(machine: str, triple: str) -> str:
    for name in (f"{triple}-ld", "ld.lld", f"{triple}-gcc"):
        path = shutil.which(name)
        if path is not None:
            return path
    raise BadInput(
        f"no linker for {machine} found (looked for {triple}-ld, ld.lld and {triple}-gcc in PATH): "
        f"apt-get install binutils-{triple}"
    )


def build_shared(func: tirx.PrimFunc, target: Target, library: Path, linker: str) -> Any:
    """Compile a scheduled function and link it to `library`, with the entry point `ENTRY` and the device's code inside.
    Return the compiled module.

    Raises what TVM raises, OSError if a file cannot be written, and RuntimeError if the linker fails, or if nothing of
    a function for another device runs on that device.
    """
    module = build(func.with_attr("global_symbol", ENTRY), target)
    parts = {library.with_suffix(".o"): module}
    if target.kind.name != "llvm":
        if not module.imports:  # TVM reports no error: the function would run on the host, on pointers of the device
            raise RuntimeError("the function has no kernel for the device: nothing of it is bound to its threads")
        parts[library.with_suffix(".device.o")] = _packed_imports(module)
    link_shared(parts, library, linker)
    return module


def link_shared(parts: Mapping[Path, Any], library: Path, linker: str) -> None:
    """Write compiled modules as object files, link these to `library` and remove them. Raises OSError if a file cannot
    be written, RuntimeError if the linker fails."""
    try:
        for path, part in parts.items():
            part.write_to_file(str(path), "o")
        command = [linker, "-shared", "-z", "noexecstack", "-o", str(library), *map(str, parts)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    finally:
        for path in parts:
            path.unlink(missing_ok=True)
    if done.returncode:
        raise RuntimeError(f"{linker} failed: {done.stderr.strip() or f'status {done.returncode}'}")


def operand_types(func: tirx.PrimFunc) -> list[tuple[list[int], str]]:
    """Return the shape and dtype of everything that a scheduled function takes."""
    return [([int(extent) for extent in p.ty.shape], str(p.ty.dtype)) for p in func.params]


def operands_file(library: Path) -> Path:
    """Return the file that keeps, for a WarmJob, the shapes and dtypes of what a built function takes."""
    return library.with_suffix(".json")


def _packed_imports(module: Any) -> Any:
    """Pack the modules that a host module imports into a module that can be linked to it, as data."""
    host = str(module.get_function("_get_target_string")())
    return tvm.get_global_func("runtime.ModulePackImportsToLLVM")(module, False, host, "")


def preflight_data(threads: int) -> np.ndarray:
    """Return what the preflight kernel reads, an array of shape (threads, 64)."""
    return np.tile(np.arange(_PREFLIGHT_CHUNK, dtype=np.float32), (threads, 1))


def preflight_result(data: np.ndarray) -> np.ndarray:
    """Return what the preflight kernel computes from `data`: all its sums are exact."""
    return (data + data) * _PREFLIGHT_TIMES


def preflight_func(threads: int, target: Target) -> tirx.PrimFunc:
    """Return a kernel that adds data + data up many times over, in parallel. It uses everything that measuring needs:
    code generation, linker, loader and thread pool.

    One sum waits for the other, so that the kernel takes some ten microseconds. That is long enough to tell how fast
    the device is, without a cache or memory playing a part.
    """
    data = te.placeholder((threads, _PREFLIGHT_CHUNK), name="data", dtype="float32")
    times = te.reduce_axis((0, _PREFLIGHT_TIMES), name="times")
    out = te.compute(data.shape, lambda i, j: te.sum(data[i, j] + data[i, j], times), name="out")
    schedule = Schedule(te.create_prim_func([data, out]))
    block = schedule.get_sblock("out")
    rows, columns, again = schedule.get_loops(block)
    if target.kind.name == "llvm":
        schedule.reorder(rows, again, columns)
        schedule.parallel(rows)
        schedule.vectorize(columns)
        initial = schedule.decompose_reduction(block, again)
        schedule.vectorize(schedule.get_loops(initial)[-1])
    else:
        schedule.bind(rows, "blockIdx.x")
        schedule.bind(columns, "threadIdx.x")
    return schedule.mod["main"]
