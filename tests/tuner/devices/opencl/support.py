"""Drivers to test on, processes that may crash, and small kernels.

What uses a driver runs in a child process: functions of test modules, called by name with picklable arguments.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import te
from tvm.s_tir import Schedule

from tuner.devices import opencl
from tuner.devices.opencl.library import SOURCES

REPOSITORY = Path(__file__).parents[4]
NOOP_SOURCE = REPOSITORY / "benchmarks/noop_opencl_driver.cc"
INTEL = Path(sys.prefix) / "lib/libintelocl.so"
TARGET = {"kind": "opencl", "max_num_threads": 64, "max_threads_per_block": 64, "host": {"kind": "llvm"}}
BUFFER = (3, 64, 1)  # the DLDataType of a kernel's buffer argument
INT32 = (0, 32, 1)


def _prepare(env: Mapping[str, str]) -> None:
    os.environ.update(env)
    opencl.load()


class Child:
    """A process that runs functions one after the other; a new one takes its place when it dies."""

    def __init__(self, **env: str) -> None:
        self._env = env
        self._pool: ProcessPoolExecutor | None = None

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, get_context("spawn"), _prepare, (self._env,))
        try:
            return self._pool.submit(function, *args).result(timeout=300)
        except (BrokenProcessPool, TimeoutError):
            self.close()
            raise

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def compile_noop_driver(folder: Path, flags: Sequence[str] = ()) -> Path:
    compiler = shutil.which("g++")
    assert compiler is not None
    library = folder / "libnoop.so"
    command = [compiler, "-O1", "-std=c++17", "-fPIC", "-shared", *flags, f"-I{SOURCES}", str(NOOP_SOURCE)]
    subprocess.run([*command, "-o", str(library)], check=True)
    return library


def device(index: int = 0) -> tvm.runtime.Device:
    return tvm.runtime.device("opencl", index)


def tensor(array: np.ndarray, index: int = 0) -> tvm.runtime.Tensor:
    return tvm.runtime.tensor(array, device(index))


def error_of(function: Callable[..., object], *args: object) -> tuple[str, str]:
    """The type and text of the exception that a call raises."""
    try:
        function(*args)
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError("no error")


def build_elementwise(
    body: Callable[..., Any], size: int, dtypes: Sequence[str], scalars: Sequence[str] = (), out: str = "float32"
) -> Any:
    """A module whose "main" computes `body(*elements, *scalars)` for each element of vectors of `size`."""
    inputs = [te.placeholder((size,), name=f"in{i}", dtype=dtype) for i, dtype in enumerate(dtypes)]
    numbers = [te.var(f"number{i}", dtype=dtype) for i, dtype in enumerate(scalars)]
    result = te.compute((size,), lambda i: body(*(x[i] for x in inputs), *numbers).astype(out), name="out")
    schedule = Schedule(te.create_prim_func([*inputs, *numbers, result]))
    (loop,) = schedule.get_loops(schedule.get_sblock("out"))
    groups, items = schedule.split(loop, [None, min(size, 64)])
    schedule.bind(groups, "blockIdx.x")
    schedule.bind(items, "threadIdx.x")
    return tvm.compile(schedule.mod, target=tvm.target.Target(TARGET))


def module_of(
    source: str,
    kernels: Mapping[str, Sequence[tuple[int, int, int]]],
    parameters: Sequence[str] = ("blockIdx.x", "threadIdx.x"),
) -> Any:
    """A module of hand-written OpenCL C. `kernels`: each one's argument types (code, bits, lanes); launch with the
    arguments, then `parameters`."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    data = text("cl") + struct.pack("<Q", len(kernels))
    for name, types in kernels.items():
        data += text(name) + text(name) + struct.pack("<Q", len(types))
        data += b"".join(struct.pack("<BBH", *kind) for kind in types)
        data += struct.pack("<Q", len(parameters)) + b"".join(map(text, parameters)) + struct.pack("<Q", 0)
    return tvm_ffi.get_global_func("ffi.Module.load_from_bytes.opencl")(data + text(source))


ADD_ONE = "__kernel void add_one(__global int* x) { x[get_global_id(0)] += 1; }"


def add_one() -> Any:
    """Called with an int32 tensor of n times m elements, n and m: adds 1 to each."""
    return module_of(ADD_ONE, {"add_one": [BUFFER]})["add_one"]
