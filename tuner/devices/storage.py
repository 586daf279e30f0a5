"""Checks in which types a device can store activations and weights. Start at `check_storage`."""

from __future__ import annotations

from tvm.target import Target

from templates.gpu.limits import gpu_limits
from tuner.errors import BadInput


def check_storage(dtype: str, target: Target, name: str) -> None:
    """Raise BadInput if `dtype` is float16 and kernels for a target cannot read and write it. `name` is what a person
    calls the device."""
    if dtype != "float16":  # every device stores float32, and the integers that operators read
        return
    limits = gpu_limits(target)
    if limits is None:
        raise BadInput(f"{dtype} on {name}: halves are for GPU devices only (opencl:N, cuda:N); use float32 here")
    if not limits.stores(dtype):
        raise BadInput(f"{dtype} on {name}: this device cannot store halves (`tune devices` shows fp16); use float32")
