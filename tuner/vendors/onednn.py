"""Call oneDNN's CPU kernels through torch, which keeps weights in oneDNN's own layouts.

oneDNN itself adds a residual and applies a ReLU after the convolution; torch computes the other steps of an epilogue.
torch has one number of threads for all of a process: that of the latest kernel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# torch's threads would otherwise keep the cores for milliseconds after each call. The variable is read when torch is
# first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import torch

from templates.epilogue import parse
from templates.workloads import Conv2d, anchor_of
from tuner.vendors.base import OPS
from tuner.vendors.host import Call, HostTemplate, Library, Prepared
from tuning_db.record import Workload

_F = torch.nn.functional
_ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "relu": torch.relu_,
    "clip": lambda x, low, high: x.clamp_(low, high),
    "leaky_relu": lambda x, slope: _F.leaky_relu_(x, slope),
    "sigmoid": torch.sigmoid_,
    "silu": lambda x: _F.silu(x, inplace=True),
    "tanh": torch.tanh_,
    "hardsigmoid": lambda x, a, b: x.mul_(a).add_(b).clamp_(0, 1),
    "hardswish": lambda x: _F.hardswish(x, inplace=True),
    "gelu": _F.gelu,
    "gelu_tanh": lambda x: _F.gelu(x, approximate="tanh"),
    "mish": lambda x: _F.mish(x, inplace=True),
    "softplus": _F.softplus,
    "elu": lambda x, alpha: _F.elu_(x, alpha),
}


class OneDnn(Library):
    """The library oneDNN, which torch contains. Raises ImportError where torch was built without it."""

    name = "onednn"
    version = f"torch {torch.__version__}"
    exact = False  # it may choose Winograd

    def __init__(self) -> None:
        if not torch.backends.mkldnn.is_available():
            raise ImportError("this torch was built without oneDNN")

    def computes(self, workload: Workload) -> bool:
        anchor = anchor_of(workload)
        return not isinstance(anchor, Conv2d) or anchor.padding[:2] == anchor.padding[2:]

    def prepared(self, workload: Workload, weight: np.ndarray, bias: np.ndarray | None, threads: int) -> Prepared:
        torch.set_num_threads(threads)
        return _Kernel(workload, torch.from_numpy(weight), None if bias is None else torch.from_numpy(bias))


class _Kernel:
    def __init__(self, workload: Workload, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._anchor = anchor_of(workload)
        tokens = list(workload.epilogue)
        self._bias = bias if tokens[:1] == ["bias"] else None
        self._late_bias = None if bias is None or self._bias is not None else bias
        tokens = tokens[self._bias is not None :]
        self._add = tokens[:1] == ["add"] and isinstance(self._anchor, Conv2d)
        tokens = tokens[self._add :]
        self._relu = tokens[:1] == ["relu"]
        self._left = tokens[self._relu :]
        self._weight = self._packed(weight)

    def _packed(self, weight: torch.Tensor) -> torch.Tensor:
        anchor = self._anchor
        if not isinstance(anchor, Conv2d):
            return weight
        where = anchor.padding[:2], anchor.strides, anchor.dilation, anchor.groups
        return torch._C._nn.mkldnn_reorder_conv2d_weight(weight.to_mkldnn(), *where, anchor.data_shape)

    def bound(self, reads: Sequence[np.ndarray], out: np.ndarray) -> Call:
        data, *adds = map(torch.from_numpy, reads)
        into = torch.from_numpy(out)

        def call() -> None:
            with torch.no_grad():
                into.copy_(self._epilogue(self._computed(data, adds), adds[self._add :]))

        return call

    def _computed(self, data: torch.Tensor, adds: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the result with the bias, the first "add" and the ReLU, as far as oneDNN fuses them."""
        anchor, weight = self._anchor, self._weight
        unary = "relu" if self._relu else None
        if not isinstance(anchor, Conv2d):
            found = _F.linear(data, weight, self._bias)
            return torch.relu_(found) if self._relu else found
        where = anchor.padding[:2], anchor.strides, anchor.dilation, anchor.groups
        convolved = torch.ops.mkldnn._convolution_pointwise
        if self._add:
            return convolved(data, adds[0], weight, self._bias, *where, "add", 1.0, unary, [], "")
        return convolved(data, weight, self._bias, *where, unary or "none", [], "")

    def _epilogue(self, value: torch.Tensor, adds: Sequence[torch.Tensor]) -> torch.Tensor:
        left = list(adds)
        for token in self._left:
            name, numbers = parse(token)
            if name == "add":
                value = value.add_(left.pop(0))
            elif name == "bias":
                assert self._late_bias is not None
                value = value.add_(self._late_bias.reshape(1, -1, *[1] * (value.ndim - 2)))
            else:
                value = _ACTIVATIONS[name](value, *numbers)
        return value


TEMPLATES = tuple(HostTemplate(OneDnn(), op) for op in OPS)
