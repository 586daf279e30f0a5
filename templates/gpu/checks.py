"""Checks that find what a device would refuse, or compute wrongly, in lowered code. Start at `violations`."""

from __future__ import annotations

from collections.abc import Iterator

import tvm

from templates.gpu.limits import GpuLimits
from templates.gpu.lowered import Kernel, Lowered

# CUDA's limits along x, y and z, which are the same from compute capability 5.0 to 9.0. Source: CUDA C++ Programming
# Guide, technical specifications.
_CUDA_GROUP = (1024, 1024, 64)
_CUDA_GRID = (2**31 - 1, 65535, 65535)
_PARAMETER_BYTES = {"opencl": 1024, "cuda": 4096}  # OpenCL: the minimum of CL_DEVICE_MAX_PARAMETER_SIZE in 1.2 and 3.0
_POINTER_BYTES = 8
_OPENCL_LANES = (1, 2, 3, 4, 8, 16)
_CUDA_VECTOR_BITS = 128


def violations(lowered: Lowered, limits: GpuLimits) -> list[str]:
    """Return one line for each thing that the device does not allow. The list is empty if all is well."""
    if not lowered.kernels:
        return ["nothing runs on the device: no loop is bound to its groups and items"]
    lines = []
    if lowered.host_accesses:
        lines.append(f"the host reads or writes device memory in {lowered.host_accesses} places: a loop is not bound")
    for kernel in lowered.kernels:
        lines += [f"{kernel.name}: {line}" for line in _of_kernel(kernel, limits)]
    return lines


def _of_kernel(kernel: Kernel, limits: GpuLimits) -> Iterator[str]:
    if kernel.items > limits.max_threads:
        yield f"work-group of {kernel.items} items, the device allows {limits.max_threads}"
    if kernel.local_bytes > limits.local_memory_bytes:
        yield f"{kernel.local_bytes} bytes of local memory, the device allows {limits.local_memory_bytes}"
    if kernel.arguments * _POINTER_BYTES > _PARAMETER_BYTES[limits.kind]:
        yield f"{kernel.arguments} arguments, the device allows {_PARAMETER_BYTES[limits.kind] // _POINTER_BYTES}"
    if kernel.divergent_barrier:
        yield "a barrier in divergent flow: not every item of a group reaches it"
    if limits.kind == "cuda":
        yield from _launch(kernel)
    for text in kernel.types:
        yield from _of_type(text, limits)


def _launch(kernel: Kernel) -> Iterator[str]:
    for what, sizes, most in (("work-group", kernel.group, _CUDA_GROUP), ("grid", kernel.grid, _CUDA_GRID)):
        for axis, size, limit in zip("xyz", sizes, most, strict=True):
            if size > limit:
                yield f"{what} of {size} along {axis}, CUDA allows {limit}"


def _of_type(text: str, limits: GpuLimits) -> Iterator[str]:
    kind = tvm.DataType(text)
    is_float = text.startswith("float")
    if is_float and kind.bits == 16 and not limits.fp16:
        yield f"{text}: the device has no half precision"
    if is_float and kind.bits == 64:
        yield f"{text}: no edge GPU computes in double precision at a useful rate"
    if limits.kind == "opencl" and kind.lanes not in _OPENCL_LANES:
        yield f"{text}: OpenCL has no vector of {kind.lanes}"
    # Vectors of integers are not checked: they are addresses of loads, and are never built.
    if limits.kind == "cuda" and is_float and kind.lanes * kind.bits > _CUDA_VECTOR_BITS:
        yield f"{text}: CUDA's widest vector has {_CUDA_VECTOR_BITS} bits"
