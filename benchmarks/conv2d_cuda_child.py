"""One kernel of conv2d_cuda.py in a process of its own, called with cold weights: a TVM library, or cuDNN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from kernel_child import serve_kernel

from templates.reference import Operands, reference, relative_error
from templates.workloads import Conv2d

CALLS = 20  # between two events
_SLEEP_CYCLES = 4_000_000  # of the GPU's clock: until all calls are queued, so that no time of the host's counts


def _seconds_of(call: Callable[[], Any]) -> Callable[[], float]:
    """Seconds of the GPU for one call, from events around several that follow each other without a gap. TVM and torch
    launch on the same stream, the default one."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run() -> float:
        torch.cuda._sleep(_SLEEP_CYCLES)
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3 / CALLS

    return run


def _library(spec: dict[str, Any], arrays: dict[str, np.ndarray]) -> Callable[[], Any]:
    import tvm

    from tuner.measure.place import Accelerator

    place = Accelerator(spec["device"])
    function = tvm.runtime.load_module(spec["library"])["main"]
    weight = place.cold(arrays["weight"], spec["cold_bytes"])
    data, bias, out = (place.tensor(arrays[name]) for name in ("data", "bias", "out"))
    return lambda: function(data, weight.next(), bias, out)


def _cudnn(spec: dict[str, Any], conv: Conv2d, arrays: dict[str, np.ndarray], layout: Any) -> Callable[[], Any]:
    """cuDNN's convolution alone, or with bias and ReLU fused, in a memory format of torch."""
    device = torch.device(spec["device"])
    data, weight, bias = (torch.from_numpy(arrays[name]).to(device) for name in ("data", "weight", "bias"))
    data = data.contiguous(memory_format=layout)
    copies = min(1024, max(1, -(-spec["cold_bytes"] // arrays["weight"].nbytes)))
    weights = [weight.clone().contiguous(memory_format=layout) for _ in range(copies)]
    pad, stride, dilation = list(conv.padding[:2]), list(conv.strides), list(conv.dilation)
    calls = 0

    def call() -> Any:
        nonlocal calls
        calls += 1
        cold = weights[calls % copies]
        if spec["kind"] == "cudnn":
            return torch.nn.functional.conv2d(data, cold, None, stride, pad, dilation, conv.groups)
        return torch.cudnn_convolution_relu(data, cold, bias, stride, pad, dilation, conv.groups)

    fused = spec["kind"] != "cudnn"
    workload = conv.workload(("bias", "relu") if fused else (), spec["dtype"])
    extra = (arrays["bias"],) if fused else ()
    expected = reference(workload, Operands(arrays["data"], arrays["weight"], extra))
    error = relative_error(call().cpu().numpy(), expected)
    if error > spec["tolerance"]:
        raise SystemExit(f"cuDNN computes something else: relative error {error:.1e}")
    return call


def _fastest_cudnn(spec: dict[str, Any], conv: Conv2d, arrays: dict[str, np.ndarray]) -> Callable[[], float]:
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = spec["tf32"]
    runs = [_seconds_of(_cudnn(spec, conv, arrays, f)) for f in (torch.contiguous_format, torch.channels_last)]
    return min(runs, key=lambda run: min(run() for _ in range(5)))


def _opened(spec: dict[str, Any], conv: Conv2d, arrays: dict[str, np.ndarray]) -> Callable[[], float]:
    return _seconds_of(_library(spec, arrays)) if spec["kind"] == "library" else _fastest_cudnn(spec, conv, arrays)


if __name__ == "__main__":
    with torch.inference_mode():
        serve_kernel(_opened)
