"""Write operators of onnxruntime's own domain, com.microsoft, out in ONNX's operators. Start at `CONTRIBUTED`.

onnxruntime's optimiser and exporters put such operators into files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto

from tuner.graph.importers.onnx.rewrites.writer import (
    WINDOW,
    NodeWriter,
    Rewrite,
    attributes_of,
    chosen_attributes,
    operand,
)


def _activated(writer: NodeWriter, x: str, kind: str, parameters: Sequence[float]) -> str | None:
    """Write the activation function that FusedConv and FusedGemm call `kind`. Return None if it is unknown."""
    if not kind:
        return x
    if kind in ("Relu", "Tanh", "Sigmoid"):
        return writer.add(kind, x)
    if kind == "LeakyRelu":
        return writer.add(kind, x, alpha=parameters[0] if parameters else 0.01)
    if kind == "Clip" and len(parameters) == 2:
        low, high = (
            writer.scalar_like(x, v) if writer.dtype(x) else writer.constant(v, np.float32) for v in parameters
        )
        return writer.add("Max", writer.add("Min", x, high), low)
    if kind == "HardSigmoid" and len(parameters) == 2:
        return writer.add(kind, x, alpha=parameters[0], beta=parameters[1])
    return None


def _fused_conv(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write a convolution, then the addition of a tensor, then an activation function."""
    attrs = attributes_of(node)
    reads = [name for name in node.input[:3] if name]
    value = writer.add("Conv", *reads, **chosen_attributes(node, *WINDOW))
    if operand(node, 3):
        value = writer.add("Add", value, operand(node, 3))
    result = _activated(writer, value, attrs.get("activation", ""), attrs.get("activation_params", ()))
    return None if result is None else [result]


def _fused_gemm(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    attrs = attributes_of(node)
    reads = [name for name in node.input if name]
    value = writer.add("Gemm", *reads, **chosen_attributes(node, "alpha", "beta", "transA", "transB"))
    kind, defaults = attrs.get("activation", ""), {"LeakyRelu": [0.01], "HardSigmoid": [0.2, 0.5]}
    given = [attrs[name] for name in ("activation_alpha", "activation_beta") if name in attrs]
    result = _activated(writer, value, kind, given or defaults.get(kind, []))
    return None if result is None else [result]


def _fused_matmul(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write a product of matrices, either of which may be transposed before, and scale it."""
    attrs, reads = attributes_of(node), []
    if attrs.get("transBatchA") or attrs.get("transBatchB"):
        return None
    for name, letter in zip(node.input, "AB", strict=True):
        shape = writer.shape(name)
        if shape is None:
            return None
        turn = attrs.get(f"trans{letter}") and len(shape) > 1
        perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        reads.append(writer.add("Transpose", name, perm=perm) if turn else name)
    value, alpha = writer.add("MatMul", *reads), attrs.get("alpha", 1.0)
    return [value if alpha == 1 else writer.add("Mul", value, writer.scalar_like(node.input[0], alpha))]


def _gelu(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write x (1 + erf(x / sqrt 2)) / 2."""
    x = node.input[0]
    if writer.dtype(x) is None:
        return None
    inner = writer.add("Erf", writer.add("Mul", x, writer.scalar_like(x, math.sqrt(0.5))))
    half = writer.add("Mul", x, writer.scalar_like(x, 0.5))
    return [writer.add("Mul", half, writer.add("Add", inner, writer.scalar_like(x, 1.0)))]


def _quick_gelu(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    x, alpha = node.input[0], attributes_of(node).get("alpha", 1.702)
    if writer.dtype(x) is None:
        return None
    return [writer.add("Mul", x, writer.add("Sigmoid", writer.add("Mul", x, writer.scalar_like(x, alpha))))]


def _skip_normalization(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write the normalisation of the sum of two tensors and an optional bias. The fourth result is that sum."""
    epsilon, simplified = attributes_of(node).get("epsilon", 1e-12), node.op_type.startswith("SkipSimplified")
    if writer.dtype(node.input[0]) is None:
        return None
    shift, bias = ("", operand(node, 3)) if simplified else (operand(node, 3), operand(node, 4))
    total = writer.add("Add", node.input[0], node.input[1])
    total = writer.add("Add", total, bias) if bias else total
    kind = writer.dtype(node.input[0])
    assert kind is not None
    results = _normalized(writer, total, (node.input[2], shift), how=(epsilon, not simplified), kind=kind)
    return [*results, total]


def _normalized(
    writer: NodeWriter, x: str, weights: tuple[str, str], *, how: tuple[float, bool], kind: np.dtype
) -> list[str]:
    """Normalise the last axis of a tensor of type `kind`.

    `weights` are the scale and the shift, which may be empty. `how` has epsilon, and whether the mean is subtracted.
    Return the result, the mean (empty if it is not subtracted), and one over the deviation.
    """
    mean, rest = "", x
    if how[1]:
        mean = writer.reduce("ReduceMean", x, [-1])
        rest = writer.add("Sub", x, mean)
    variance = writer.reduce("ReduceMean", writer.add("Mul", rest, rest), [-1])
    root = writer.add("Sqrt", writer.add("Add", variance, writer.constant(how[0], kind)))
    inverse = writer.add("Reciprocal", root)
    result = writer.add("Mul", writer.add("Mul", rest, inverse), weights[0])
    return [writer.add("Add", result, weights[1]) if weights[1] else result, mean, inverse]


def _simplified_normalization(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write a root mean square normalisation of the last axis. Return None if the node normalises several axes."""
    attrs, shape, kind = attributes_of(node), writer.shape(node.input[0]), writer.dtype(node.input[0])
    if shape is None or kind is None or attrs.get("axis", -1) % len(shape) != len(shape) - 1:
        return None
    result, _, inverse = _normalized(
        writer, node.input[0], (node.input[1], ""), how=(attrs.get("epsilon", 1e-5), False), kind=kind
    )
    return [result, inverse]


def _matmul_integer_to_float(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Write a product of quantised matrices that gives real numbers. The second matrix may have one scale and one zero
    point for each column."""
    a, b, a_scale, b_scale = node.input[:4]
    reads = []
    for name, zero in ((a, operand(node, 4)), (b, operand(node, 5))):
        value = writer.cast(name, TensorProto.FLOAT)
        reads.append(writer.add("Sub", value, writer.cast(zero, TensorProto.FLOAT)) if zero else value)
    factor = writer.add("Mul", a_scale, b_scale)
    value = writer.add("Mul", writer.add("MatMul", *reads), factor)
    return [writer.add("Add", value, operand(node, 6)) if operand(node, 6) else value]


def _dynamic_quantize_matmul(writer: NodeWriter, node: onnx.NodeProto) -> Sequence[str] | None:
    """Quantise the first matrix by its range, then multiply as MatMulIntegerToFloat does."""
    a, b, b_scale = node.input[:3]
    whole, scale, zero = writer.add_many("DynamicQuantizeLinear", [a], 3)
    reads = [whole, b, scale, b_scale, zero, operand(node, 3), operand(node, 4)]
    return writer.add_many("MatMulIntegerToFloat", reads, 1, domain=MICROSOFT)


MICROSOFT = "com.microsoft"
CONTRIBUTED: dict[tuple[str, str], Rewrite] = {
    (MICROSOFT, "DynamicQuantizeMatMul"): _dynamic_quantize_matmul,
    (MICROSOFT, "FusedConv"): _fused_conv,
    (MICROSOFT, "FusedGemm"): _fused_gemm,
    (MICROSOFT, "FusedMatMul"): _fused_matmul,
    (MICROSOFT, "Gelu"): _gelu,
    (MICROSOFT, "MatMulIntegerToFloat"): _matmul_integer_to_float,
    (MICROSOFT, "QuickGelu"): _quick_gelu,
    (MICROSOFT, "SkipLayerNormalization"): _skip_normalization,
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): _skip_normalization,
    (MICROSOFT, "TransposeMatMul"): _fused_matmul,
    (MICROSOFT, "SimplifiedLayerNormalization"): _simplified_normalization,
}
