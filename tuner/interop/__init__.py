"""Other frameworks. Built modules inside them, without copies: `torch_operator` (PyTorch, torch.compile) and `ort_step`
(between onnxruntime's sessions). Their tuning logs: `autotvm`."""

from tuner.interop.ort import ort_step
from tuner.interop.pytorch import torch_operator

__all__ = ["ort_step", "torch_operator"]
