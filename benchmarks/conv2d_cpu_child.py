"""This program times one kernel for conv2d_cpu.py, which starts it, with cold weights.

The kernel is a TVM library, or oneDNN's convolution through torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from kernel_child import serve_kernel

from templates.reference import Operands, reference, relative_error
from templates.workloads import Conv2d

EPILOGUE = ("bias", "relu")


def _library(spec: dict[str, Any], arrays: dict[str, np.ndarray]) -> Callable[[], float]:
    import tvm

    from tuner.measure.targets.cold_weights import HostColdWeight

    function = tvm.runtime.load_module(spec["library"])["main"]
    weight = HostColdWeight(arrays["weight"], spec["cold_bytes"])
    data, bias, out = (tvm.runtime.tensor(arrays[name], tvm.cpu()) for name in ("data", "bias", "out"))

    def run() -> float:
        cold = weight.next()
        start = time.perf_counter()
        function(data, cold, bias, out)
        return time.perf_counter() - start

    return run


def _onednn(spec: dict[str, Any], conv: Conv2d, arrays: dict[str, np.ndarray]) -> Callable[[], float]:
    """Open oneDNN's convolution with channels-last data and prepacked weights. Exit if its result is wrong.

    torch's inductor calls the same for a frozen model.
    """
    import torch

    torch.set_num_threads(1)
    plain = [torch.from_numpy(arrays[name]) for name in ("data", "weight", "bias")]
    data, bias = plain[0].contiguous(memory_format=torch.channels_last), plain[2]
    pad, stride, dilation = list(conv.padding[:2]), list(conv.strides), list(conv.dilation)
    copies = max(1, -(-spec["cold_bytes"] // arrays["weight"].nbytes))
    packed = [
        torch._C._nn.mkldnn_reorder_conv2d_weight(
            plain[1].to_mkldnn(), pad, stride, dilation, conv.groups, list(conv.data_shape)
        )
        for _ in range(copies)
    ]
    function = torch.ops.mkldnn._convolution_pointwise.default
    calls = 0

    def call() -> Any:
        return function(data, packed[calls % copies], bias, pad, stride, dilation, conv.groups, "relu", [], "")

    def run() -> float:
        nonlocal calls
        calls += 1
        with torch.inference_mode():
            start = time.perf_counter()
            call()
            return time.perf_counter() - start

    with torch.inference_mode():
        inputs = Operands(arrays["data"], arrays["weight"], (arrays["bias"],))
        error = relative_error(call().numpy(), reference(conv.workload(EPILOGUE), inputs))
    if error > 1e-4:
        raise SystemExit(f"oneDNN computes something else: relative error {error:.1e}")
    return run


def _opened(spec: dict[str, Any], conv: Conv2d, arrays: dict[str, np.ndarray]) -> Callable[[], float]:
    return _library(spec, arrays) if spec["kind"] == "library" else _onednn(spec, conv, arrays)


if __name__ == "__main__":
    serve_kernel(_opened)
