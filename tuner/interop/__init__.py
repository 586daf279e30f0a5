"""Connects to other frameworks. `torch_operator` (PyTorch, torch.compile) and `ort_step` (between onnxruntime's
sessions) run built modules inside them without copies. `autotvm` and `metaschedule` read the tuning logs of TVM's other
tuners.
"""

from tuner.interop.ort import ort_step
from tuner.interop.pytorch import torch_operator

__all__ = ["ort_step", "torch_operator"]
