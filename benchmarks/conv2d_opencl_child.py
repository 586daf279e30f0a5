"""This program times one kernel for conv2d_opencl.py, which starts it, with cold weights.

The kernel is a TVM library, CLBlast's convolution, or a kernel of nothing but multiply-adds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from kernel_child import serve_kernel

from templates.reference import Operands, reference, relative_error
from templates.workloads import Conv2d


def _library(spec: dict[str, Any], arrays: dict[str, np.ndarray]) -> Callable[[], float]:
    import tvm

    from tuner.measure.targets.executor import Accelerator

    place = Accelerator(spec["device"])
    function = tvm.runtime.load_module(spec["library"])["main"]
    weight = place.cold(arrays["weight"], spec["cold_bytes"])
    data, bias, out = (place.tensor(arrays[name]) for name in ("data", "bias", "out"))
    return lambda: place.seconds(function, data, weight.next(), bias, out)


def _multiplier(spec: dict[str, Any], arrays: dict[str, np.ndarray]) -> Callable[[], float]:
    import tvm

    from tuner.measure.targets.executor import Accelerator

    place = Accelerator(spec["device"])
    function = tvm.runtime.load_module(spec["library"])["main"]
    start, out = (place.tensor(arrays[name]) for name in ("start", "out"))
    return lambda: place.seconds(function, start, out)


def _clblast(spec: dict[str, Any], conv: Conv2d, arrays: dict[str, np.ndarray]) -> Callable[[], float]:
    """Open CLBlast's convolution, without bias and ReLU, which CLBlast does not have. Exit if its result is wrong."""
    from clblast import ClBlast

    blast = ClBlast(spec["driver"], conv, arrays["data"], arrays["weight"])
    blast.seconds()
    error = relative_error(blast.result(), reference(conv.workload(), Operands(arrays["data"], arrays["weight"], ())))
    if error > 1e-4:
        raise SystemExit(f"CLBlast computes something else: relative error {error:.1e}")
    return blast.seconds


def _opened(spec: dict[str, Any], conv: Conv2d, arrays: dict[str, np.ndarray]) -> Callable[[], float]:
    if spec["kind"] == "clblast":
        return _clblast(spec, conv, arrays)
    return (_multiplier if spec["kind"] == "peak" else _library)(spec, arrays)


if __name__ == "__main__":
    serve_kernel(_opened)
