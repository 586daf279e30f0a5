"""Has what OpenCL and CUDA devices share: the width of their vectors, and the size of their caches."""

from __future__ import annotations

import tvm

GPU_LANES = 4  # of the vectors that are worth using
LEAST_CACHE_BYTES = 1 << 20  # where a driver reports no cache


def cache_bytes(device: tvm.runtime.Device) -> int:
    """Return the size of a GPU's last cache level, as TVM's device reports it."""
    return max(int(device.l2_cache_size_bytes or 0), LEAST_CACHE_BYTES)
