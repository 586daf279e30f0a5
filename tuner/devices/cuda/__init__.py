"""CUDA kernels: how they are compiled, in place of how TVM does it. Importing this registers it with TVM."""

from tuner.devices.cuda.building import arch_of, capability_of, register
from tuner.devices.cuda.nvrtc import Nvrtc

__all__ = ["Nvrtc", "arch_of", "capability_of"]

register()
