"""`operator_model` writes a convolution or a dense layer as an ONNX model of its own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx

from templates.epilogue import parse
from templates.workloads import Conv2d, anchor_of
from tuner.zoo.builder import GraphBuilder
from tuning_db.record import Workload

_ACTIVATIONS = {
    "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "hardswish": "HardSwish", "softplus": "Softplus"
}  # fmt: skip


def operator_model(workload: Workload, weight: np.ndarray, bias: np.ndarray | None) -> onnx.ModelProto:
    """Return a model of a convolution or dense layer with its epilogue. Its inputs are "data" and, for every "add" in
    the epilogue, "add0", "add1" and so on. It has one output."""
    anchor, builder = anchor_of(workload), GraphBuilder("operator", np.random.default_rng(0))
    left = list(workload.epilogue)
    operands = [builder.input("data", anchor.data_shape), builder.constant(np.asarray(weight, np.float32))]
    if bias is not None and left[:1] == ["bias"]:
        operands.append(builder.constant(np.asarray(bias, np.float32)))
        left.pop(0)
    if isinstance(anchor, Conv2d):
        window = {"kernel_shape": anchor.kernel, "strides": anchor.strides, "pads": anchor.padding}
        attributes: dict[str, Any] = {**window, "dilations": anchor.dilation, "group": anchor.groups}
        value = builder.node("Conv", operands, **attributes)
    else:
        value = builder.node("Gemm", operands, transB=1)
    adds = 0
    for token in left:
        if token == "bias":
            assert bias is not None
            late = builder.constant(np.asarray(bias, np.float32).reshape(1, -1, *[1] * (weight.ndim - 2)))
            value = builder.node("Add", [value, late])
        elif token == "add":
            value = builder.node("Add", [value, builder.input(f"add{adds}", anchor.out_shape)])
            adds += 1
        else:
            value = _activated(builder, token, value)
    return builder.model(value)


def _activated(builder: GraphBuilder, token: str, value: str) -> str:
    name, numbers = parse(token)
    if name == "clip":
        return builder.node("Clip", [value, *(builder.constant(np.array(n, np.float32)) for n in numbers)])
    if name == "leaky_relu":
        return builder.node("LeakyRelu", [value], alpha=numbers[0])
    if name == "hardsigmoid":
        return builder.node("HardSigmoid", [value], alpha=numbers[0], beta=numbers[1])
    if name == "elu":
        return builder.node("Elu", [value], alpha=numbers[0])
    if name == "silu":
        return builder.node("Mul", [value, builder.node("Sigmoid", [value])])
    if name == "mish":
        return builder.node("Mul", [value, builder.node("Tanh", [builder.node("Softplus", [value])])])
    if name in ("gelu", "gelu_tanh"):
        return _gelu(builder, value, by_tanh=name == "gelu_tanh")
    return builder.node(_ACTIVATIONS[name], [value])


def _gelu(builder: GraphBuilder, value: str, by_tanh: bool) -> str:
    """Write a GELU in operators that are older than ONNX's own."""

    def scalar(number: float) -> str:
        return builder.constant(np.array(number, np.float32))

    inner = builder.node("Mul", [value, scalar(math.sqrt(0.5))])
    if by_tanh:
        cube = builder.node("Mul", [builder.node("Mul", [value, value]), value])
        curve = builder.node("Add", [value, builder.node("Mul", [cube, scalar(0.044715)])])
        inner = builder.node("Mul", [curve, scalar(math.sqrt(2 / math.pi))])
    gate = builder.node("Add", [builder.node("Tanh" if by_tanh else "Erf", [inner]), scalar(1)])
    return builder.node("Mul", [builder.node("Mul", [value, scalar(0.5)]), gate])
