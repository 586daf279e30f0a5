"""Measures how fast a device is at best now: its multiply-adds, its memory and its launches. Start at `roof_of`."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx

from templates import default
from templates.gpu import opencl_text  # noqa: F401  registers what OpenCL kernels are rewritten by
from tuner.devices.base import Device
from tuner.devices.peak import fma_peak, peak_of
from tuner.precision import precision_of

_ELEMENTS = 1 << 24  # of each of the three arrays: no cache holds them
_REPEATS = 5
_LAUNCHES = 20  # one after the other
_FEW = 1 << 10  # numbers: enough for a parallel loop, and nothing to compute


def roof_of(device: Device, dtypes: Iterable[str] = ()) -> dict[str, Any]:
    """Measure the device's peak of multiply-adds in float32 and the rate of its memory, in operations and bytes a
    second. "peaks" has that peak, and those of workloads of other `dtypes` that it has, by their precision. This takes
    seconds."""
    flops = fma_peak(device)
    return {"flops": flops, "peaks": peaks_of(device, dtypes, flops), "bytes_per_second": _stream_rate(device)}


def peaks_of(device: Device, dtypes: Iterable[str], flops: float) -> dict[str, float]:
    """Measure the peaks of workloads of some dtypes, where the device has such. Return them by their precision,
    together with float32's, which is `flops`."""
    peaks = {"float32": flops}
    for dtype in sorted(set(dtypes) - peaks.keys()):
        if (peak := peak_of(device, dtype)) is not None:
            peaks[precision_of(dtype)] = peak
    return peaks


def launch_seconds(device: Device) -> float:
    """Measure what every launch takes besides its work: the seconds of a kernel with next to nothing to compute, in a
    row of such kernels."""
    return median(_sums(device, _FEW, _LAUNCHES))


def sum_kernel(device: Device, elements: int) -> tirx.PrimFunc:
    """Return a kernel that writes the sum of two arrays of float32 to a third one."""
    a, b = (te.placeholder((elements,), "float32", name) for name in "ab")
    total = te.compute((elements,), lambda i: a[i] + b[i], name="total")
    return default.schedule(te.create_prim_func([a, b, total]).with_attr("global_symbol", "main"), device.target)


def _stream_rate(device: Device) -> float:
    """Measure the bytes that a sum of two arrays reads and writes in a second, the best of a few runs."""
    return 3.0 * 4 * _ELEMENTS / min(_sums(device, _ELEMENTS, 1))


def _sums(device: Device, elements: int, number: int) -> list[float]:
    """Time a sum of two arrays that runs `number` times in a row. Return its seconds per run, once for each of some
    repeats."""
    module = tvm.compile(sum_kernel(device, elements), target=device.target)
    place = device.tvm_device()
    arrays = [tvm.runtime.tensor(np.ones(elements, np.float32), place) for _ in range(3)]
    timed = module.mod.time_evaluator("main", place, number=number, repeat=_REPEATS)(*arrays)
    return [float(seconds) for seconds in timed.results]
