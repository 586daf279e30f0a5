"""This benchmark measures what our OpenCL runtime adds to a kernel launch, and looks for leaks under many threads.

    python benchmarks/opencl_launch.py [--quick] [--json] [--launches N]

The runtime's own cost is the time per launch on a driver that does nothing, including TVM's compiled host code. That
driver is compiled here from noop_opencl_driver.cc. Then every driver of this machine is measured: the time per launch
of a tiny kernel, until it is enqueued and until it is done. At last 8 threads launch together, and the benchmark
reports by how much the process grows and what we allocate. A driver's own pools change by some MiB; a leak grows with
--launches.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import tvm
from tvm import te
from tvm.s_tir import Schedule

from tuner.devices import opencl
from tuner.devices.opencl.library import SOURCES, find_compiler

KERNELS = 50  # launches in one call of the host function
THREADS = 8
TARGET = {"kind": "opencl", "max_num_threads": 64, "max_threads_per_block": 64, "host": {"kind": "llvm"}}


def host_function(kernels: int, size: int) -> Any:
    """Compile a host function that launches `kernels` kernels, each of which adds 1 to a vector."""

    def add_one(vector: te.Tensor, name: str) -> te.Tensor:
        return te.compute((size,), lambda i: vector[i] + 1.0, name=name)

    data = te.placeholder((size,), name="data")
    out = data
    for number in range(kernels):
        out = add_one(out, f"stage{number}")
    schedule = Schedule(te.create_prim_func([data, out]))
    for number in range(kernels):
        (loop,) = schedule.get_loops(schedule.get_sblock(f"stage{number}"))
        groups, items = schedule.split(loop, [None, 64])
        schedule.bind(groups, "blockIdx.x")
        schedule.bind(items, "threadIdx.x")
    return tvm.compile(schedule.mod, target=tvm.target.Target(TARGET))["main"]


def launch_times(index: int, calls: int) -> tuple[float, float]:
    """Return the microseconds per launch until it is enqueued, and until it is done, as medians over the calls."""
    device, function = tvm.runtime.device("opencl", index), host_function(KERNELS, 64)
    data, out = (tvm.runtime.tensor(np.zeros(64, np.float32), device) for _ in range(2))
    enqueued, done = [], []
    for _ in range(calls):
        start = time.perf_counter()
        function(data, out)
        enqueued.append(time.perf_counter() - start)
        device.sync()
        done.append(time.perf_counter() - start)
    return median(enqueued) / KERNELS * 1e6, median(done) / KERNELS * 1e6


def launch_from_threads(index: int, launches: int) -> dict[str, int]:
    """Launch one module `launches` times from several threads together.

    Return the numbers of errors and wrong results, by how many bytes the process grew, and what was allocated.
    """
    device, function = tvm.runtime.device("opencl", index), host_function(1, 64)
    data = [[tvm.runtime.tensor(np.zeros(64, np.float32), device) for _ in range(2)] for _ in range(THREADS)]
    errors: list[str] = []

    def run(arrays: list[tvm.runtime.Tensor], count: int) -> None:
        try:
            for done in range(count):
                function(*arrays)
                if done % 1000 == 999:  # the queue of a driver may grow without bound
                    device.sync()
        except Exception as error:
            errors.append(str(error))

    def together(count: int) -> int:
        threads = [threading.Thread(target=run, args=(arrays, count // THREADS)) for arrays in data]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        device.sync()
        return psutil.Process().memory_info().rss

    warm = together(launches)
    before = opencl.counters()
    grown = together(launches) - warm
    after = opencl.counters()
    spent = {f"new_{key}": after[key] - before[key] for key in ("launches", "allocations", "releases")}
    wrong = sum(not (out.numpy() == 1).all() for _, out in data)
    return {"errors": len(errors), "wrong_results": wrong, "grown_bytes": grown, **spent}


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure each device that this process sees, and return a row for each."""
    rows = []
    opencl.set_binary_cache(None)
    for info in opencl.devices():
        enqueue, total = launch_times(info.index, 40 if options.quick else 400)
        row = {"device": info.name, "platform": info.platform, "driver": info.library}
        row |= {"enqueue_us": enqueue, "total_us": total}
        rows.append(row | launch_from_threads(info.index, options.launches))
    return rows


def in_child(options: argparse.Namespace, env: dict[str, str]) -> list[dict[str, Any]]:
    """Measure in a process that has these drivers, and return its rows."""
    command = [sys.executable, __file__, "--child", "--launches", str(options.launches)]
    command += ["--quick"] if options.quick else []
    done = subprocess.run(command, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


def noop_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    source, compiler = Path(__file__).with_name("noop_opencl_driver.cc"), find_compiler()
    assert compiler is not None  # it has just compiled the runtime
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libnoop.so"
        command = [compiler, "-O2", "-std=c++17", "-fPIC", "-shared", f"-I{SOURCES}", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        return in_child(options, {"EDGETUNE_OPENCL": str(library)})[:1]


def _report(rows: list[dict[str, Any]], say: Callable[[str], None]) -> None:
    for row in rows:
        say(
            f"{row['platform'][:28]:28s} {row['device'][:28]:28s} enqueue {row['enqueue_us']:7.3f} us"
            f"  done {row['total_us']:7.3f} us  errors {row['errors']}  wrong {row['wrong_results']}"
            f"  grown {row['grown_bytes'] / 1024:.0f} KiB in {row['new_launches']} launches"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer calls, 8000 launches from threads")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output at the end")
    parser.add_argument("--launches", type=int, help="from all threads together (default: 100000)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.launches = options.launches or (8000 if options.quick else 100_000)
    opencl.load()
    if options.child:
        print(json.dumps(measure(options)))
        return
    own, rows = noop_rows(options), in_child(options, {})
    if not rows:
        print("no driver works here: `tune doctor` says what to install", file=sys.stderr)
    own[0]["wrong_results"] = 0  # it computes nothing
    _report(own + rows, lambda line: print(line, file=sys.stderr))
    result = {
        "summary": {
            "own_us_per_launch": own[0]["enqueue_us"],
            "errors": sum(row["errors"] + row["wrong_results"] for row in own + rows),
            "grown_bytes_max": max(row["grown_bytes"] for row in own + rows),
        },
        "rows": own + rows,
        "machine": {"platform": platform.platform(), "launches": options.launches, "threads": THREADS},
    }
    for key, value in result["summary"].items():
        print(f"{key:40s} {value:.3f}", file=sys.stderr)
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
