"""Built modules inside other frameworks, without copies: `torch_operator` (PyTorch, torch.compile) and `ort_step`
(between onnxruntime's sessions)."""

from tuner.interop.ort import ort_step
from tuner.interop.pytorch import torch_operator

__all__ = ["ort_step", "torch_operator"]
