"""Compiles CUDA kernels, in place of how TVM does it. Importing this package registers the compiler with TVM."""

from tuner.devices.cuda.building import arch_of, capability_of, register
from tuner.devices.cuda.kind import CudaKind
from tuner.devices.cuda.nvrtc import Nvrtc

__all__ = ["KIND", "CudaKind", "Nvrtc", "arch_of", "capability_of"]

KIND = CudaKind()
register()
