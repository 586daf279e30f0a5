"""A convolution or a dense layer as an ONNX model of its own: `operator_model`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from templates.epilogue import parse
from templates.workloads import Conv2d, anchor_of
from tuning_db.record import Workload

OPSET, IR_VERSION = 17, 8
_ACTIVATIONS = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "hardswish": "HardSwish"}


def operator_model(workload: Workload, weight: np.ndarray, bias: np.ndarray | None) -> onnx.ModelProto:
    """A convolution or dense layer with its epilogue: "data" and, for every "add", "add0" ... to "out"."""
    anchor, network = anchor_of(workload), _Network()
    left = list(workload.epilogue)
    with_bias = bool(left) and left[0] == "bias" and bias is not None
    operands = [network.constant(weight), *([network.constant(bias)] if with_bias and bias is not None else [])]
    if isinstance(anchor, Conv2d):
        attributes = {"kernel_shape": anchor.kernel, "strides": anchor.strides, "pads": anchor.padding}
        more = {"dilations": anchor.dilation, "group": anchor.groups}
        value = network.node("Conv", "data", *operands, **attributes, **more)
    else:
        value = network.node("Gemm", "data", *operands, transB=1)
    adds = 0
    for token in left[with_bias:]:
        if token == "bias":
            assert bias is not None
            value = network.node("Add", value, network.constant(bias.reshape(1, -1, *[1] * (weight.ndim - 2))))
        elif token == "add":
            value, adds = network.node("Add", value, f"add{adds}"), adds + 1
        else:
            value = network.activation(token, value)
    inputs = {"data": anchor.data_shape, **{f"add{i}": anchor.out_shape for i in range(adds)}}
    return network.model(inputs, anchor.out_shape)


class _Network:
    """An ONNX graph, node by node."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def constant(self, array: np.ndarray) -> str:
        name = f"constant{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(array, np.float32), name))
        return name

    def node(self, op: str, *reads: str, **attributes: object) -> str:
        name = f"value{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, list(reads), [name], name=name, **attributes))
        return name

    def activation(self, token: str, value: str) -> str:
        name, numbers = parse(token)
        if name == "clip":
            return self.node("Clip", value, *(self.constant(np.array(n, np.float32)) for n in numbers))
        if name == "leaky_relu":
            return self.node("LeakyRelu", value, alpha=numbers[0])
        if name == "hardsigmoid":
            return self.node("HardSigmoid", value, alpha=numbers[0], beta=numbers[1])
        if name == "silu":
            return self.node("Mul", value, self.node("Sigmoid", value))
        return self.node(_ACTIVATIONS[name], value)

    def model(self, inputs: Mapping[str, tuple[int, ...]], shape: tuple[int, ...]) -> onnx.ModelProto:
        """The last node's result is "out", of that shape."""
        self._nodes[-1].output[0] = "out"

        def info(name: str, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))

        reads = [info(name, shape) for name, shape in inputs.items()]
        graph = helper.make_graph(self._nodes, "operator", reads, [info("out", shape)], self._constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = IR_VERSION
        return model
