"""Reads what our OpenCL runtime counts and records, and sets what can be set. Start at `counters` and `trace`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from tuner.devices.opencl.library import call, load

# The functions that begin a group of a stage on a side stream, or the last on the thread's own, and that end the stage
# (runtime/stages.cc).
ASIDE, BACK, JOIN = "edgetune.stage.aside", "edgetune.stage.back", "edgetune.stage.join"


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel that was recorded. `stream` numbers streams as they appear in a trace. Times are nanoseconds
    of the device's clock."""

    kernel: str
    stream: int
    queued: int
    submitted: int
    started: int
    ended: int


def counters() -> dict[str, int]:
    """Return what this process has asked of OpenCL drivers so far: allocations, releases, workspaces, launches, flushes
    (as `set_flush_every` asks), finishes (waits for a whole queue), bytes_to_device, bytes_from_device,
    bytes_on_device, programs_compiled (from source), programs_loaded (from the cache of binaries)."""
    return {str(name): int(value) for name, value in call("counters").items()}


@contextlib.contextmanager
def trace() -> Iterator[list[Launch]]:
    """Record every launch of this process inside the block; the list is filled when the block ends."""
    launches: list[Launch] = []
    call("start_trace")
    try:
        yield launches
    finally:
        launches += [Launch(str(row[0]), *map(int, row[1:])) for row in call("stop_trace")]


def timed_call(device: tvm.runtime.Device, function: Callable[..., Any], *arguments: Any) -> float:
    """Call a function of a device's kernels, wait for it, and return the seconds between two events of the device. The
    device may be one of CUDA's too."""
    load()
    nanoseconds = tvm.get_global_func("edgetune.time_call")(device, function, *arguments)
    return float(nanoseconds) * 1e-9


def order_streams(index: int, first: int, then: int) -> None:
    """Let what is launched on the stream `then` from now on wait for all that is on the stream `first` of the device
    "opencl:`index`" so far. The caller does not wait. Streams are TVM's raw ones; 0 is the device's default."""
    call("order_streams", index, first, then)


def leave_stage() -> None:
    """Go back to the stream that the calling thread had before its present stage, and let that stream wait for the
    stage's other streams. This is for errors, after which nothing else does so."""
    load()
    tvm_ffi.get_global_func(JOIN)()


def set_flush_every(index: int, launches: int) -> None:
    """Flush each queue of the device "opencl:`index`" after every so many launches (0: as the driver decides). Mali
    drivers hang when too many are queued."""
    call("set_flush_every", index, launches)


def set_host_threads(rest: int, rise: int) -> None:
    """Set two functions of C without arguments by their addresses (0: none any more). `rest` is called before a device
    that computes on the host's own cores gets work, and `rise` when a tensor has been copied from it. They are for the
    threads of a pool that waits on those cores (`parallel.Pool.waiting`)."""
    call("set_host_threads", rest, rise)


def set_build_options(index: int, options: str) -> None:
    """Set the options for programs that are built for the device from now on. Options of one kernel alone go into its
    source, as a line "// edgetune-build-options: ..."."""
    call("set_build_options", index, options)


def set_binary_cache(folder: Path | None) -> None:
    """Keep compiled programs in `folder`, or nowhere (None). Until this is called they are kept in opencl/ in the cache
    folder."""
    call("set_binary_cache", "" if folder is None else str(folder))
