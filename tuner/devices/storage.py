"""Checks in which types a device can store activations and weights, and a CPU compute. Start at `check_storage`."""

from __future__ import annotations

from tvm.target import Target

from templates.bfloats import BFLOAT16
from templates.cpu.isa import computes_in
from templates.gpu.limits import gpu_limits
from tuner.errors import BadInput


def check_storage(dtype: str, target: Target, name: str) -> None:
    """Raise BadInput if `dtype` is float16 and kernels for a target cannot read and write it, or if it is a CPU that
    does not compute in it, and if `dtype` is bfloat16 for all but CPUs that multiply in it. `name` is what a person
    calls the device."""
    if dtype == BFLOAT16 and not computes_in(target, dtype):
        raise BadInput(
            f"{dtype} on {name}: is for CPUs with dot products of it (avx512_bf16 on x86, bf16 on ARM); use float32"
        )
    if dtype != "float16":  # every device stores float32, and the integers that operators read
        return
    limits = gpu_limits(target)
    if limits is None:
        if not computes_in(target, dtype):
            raise BadInput(f"{dtype} on {name}: this CPU has no arithmetic in halves (asimdhp on ARM); use float32")
        return
    if not limits.stores(dtype):
        raise BadInput(f"{dtype} on {name}: this device cannot store halves (`tune devices` shows fp16); use float32")
