"""Compute the operators of `real_operators` in torch, which calls oneDNN for products, convolutions and softmax.

It is imported only where torch is installed. Start at `torch_call`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

Tensors = Sequence[torch.Tensor]
Attributes = Mapping[str, Any]


def torch_call(kind: str, inputs: Sequence[np.ndarray], constants: Sequence[np.ndarray], attrs: Attributes) -> Any:
    """Return a function without arguments that computes an ONNX operator on one thread. Raises KeyError for an operator
    that is not here."""
    compute = _OPERATORS[kind]
    given, weights = (list(map(torch.from_numpy, arrays)) for arrays in (inputs, constants))
    torch.set_num_threads(1)

    def call() -> torch.Tensor:
        with torch.inference_mode():
            return compute(given, weights, attrs)

    return call


def _convolution(x: Tensors, w: Tensors, attrs: Attributes) -> torch.Tensor:
    rank = x[0].ndim - 2
    compute = {1: F.conv1d, 2: F.conv2d}[rank]
    padding = list(attrs.get("pads", [0] * rank)[:rank])
    return compute(
        x[0],
        w[0],
        stride=attrs.get("strides", 1),
        padding=padding,
        dilation=attrs.get("dilations", 1),
        groups=attrs.get("group", 1),
    )


def _transposed(x: Tensors, w: Tensors, attrs: Attributes) -> torch.Tensor:
    return F.conv_transpose2d(
        x[0],
        w[0],
        stride=attrs["strides"],
        padding=list(attrs.get("pads", [0, 0])[:2]),
        output_padding=attrs.get("output_padding", 0),
    )


_OPERATORS: dict[str, Callable[[Tensors, Tensors, Attributes], torch.Tensor]] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "DepthToSpace": lambda x, _, attrs: F.pixel_shuffle(x[0], attrs["blocksize"]),
    "Elu": lambda x, _, __: F.elu(x[0]),
    "Erf": lambda x, _, __: torch.erf(x[0]),
    "Exp": lambda x, _, __: torch.exp(x[0]),
    "Gelu": lambda x, _, __: F.gelu(x[0]),
    "GlobalAveragePool": lambda x, _, __: x[0].mean((2, 3), keepdim=True),
    "InstanceNormalization": lambda x, w, _: F.instance_norm(x[0], weight=w[0], bias=w[1]),
    "LayerNormalization": lambda x, w, _: F.layer_norm(x[0], w[0].shape, w[0], w[1]),
    "MatMul": lambda x, _, __: torch.matmul(x[0], x[1]),
    "Neg": lambda x, _, __: torch.neg(x[0]),
    "ReduceMean": lambda x, w, _: x[0].mean(w[0].tolist(), keepdim=True),
    "Sigmoid": lambda x, _, __: torch.sigmoid(x[0]),
    "Softmax": lambda x, _, attrs: torch.softmax(x[0], attrs["axis"]),
    "Softplus": lambda x, _, __: F.softplus(x[0]),
    "Tanh": lambda x, _, __: torch.tanh(x[0]),
    "Transpose": lambda x, _, attrs: x[0].permute(attrs["perm"]).contiguous(),
}
