"""`GraphBuilder` adds layers with seeded random parameters to an ONNX graph and returns the finished model.

Weights are He-scaled, and batch statistics lie around those of a trained network. So activations keep their magnitude
from the first layer to the last. Methods that add a layer take and return names of values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper, shape_inference

OPSET = 17
IR_VERSION = 8

# A padding is one number for all sides, (above and below, left and right), or (above, left, below, right).
Padding = int | tuple[int, int] | tuple[int, int, int, int]


class GraphBuilder:
    """Builds one graph, whose values are NCHW float32. `channels` maps each value to its channel count."""

    def __init__(self, name: str, rng: np.random.Generator) -> None:
        self._name = name
        self.rng = rng
        self._nodes: list = []
        self._initializers: list = []
        self._inputs: list = []
        self._counts: dict[str, int] = {}
        self.channels: dict[str, int] = {}

    def input(self, name: str, shape: Sequence[int]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))
        self.channels[name] = shape[1]
        return name

    def conv(
        self,
        x: str,
        name: str,
        out_channels: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: Padding = 0,
        *,
        groups: int = 1,
        bias: bool = False,
        gain: float = 2.0,
        shift: float | np.ndarray = 0.0,
    ) -> str:
        """Add a convolution. `gain` is the weight variance times fan-in; 2 keeps the magnitude where a ReLU precedes or
        follows. `shift` is the value around which the biases lie."""
        kh, kw = (kernel, kernel) if isinstance(kernel, int) else kernel
        shape = (out_channels, self.channels[x] // groups, kh, kw)
        reads = [x, self._parameter(f"{name}.weight", self._normal(shape, np.sqrt(gain / np.prod(shape[1:]))))]
        if bias:
            reads.append(self._parameter(f"{name}.bias", self._normal((out_channels,), 0.05) + np.float32(shift)))
        return self.node(
            "Conv",
            reads,
            out_channels,
            dilations=[1, 1],
            group=groups,
            kernel_shape=[kh, kw],
            pads=_pads(padding),
            strides=[stride, stride],
        )

    def batch_norm(self, x: str, name: str, gain: float = 1.0, epsilon: float = 1e-5) -> str:
        """Add a batch normalisation. `gain` is its mean scale; it is below one where a residual branch ends, so that
        the sums do not grow."""
        n = self.channels[x]
        uniform = self.rng.uniform
        parameters = {
            "weight": gain * uniform(0.7, 1.3, n),
            "bias": self.rng.normal(0, 0.1, n),
            "running_mean": self.rng.normal(0, 0.2, n),
            "running_var": uniform(0.6, 1.5, n),
        }
        reads = [self._parameter(f"{name}.{key}", value.astype(np.float32)) for key, value in parameters.items()]
        return self.node("BatchNormalization", [x, *reads], n, epsilon=epsilon, momentum=0.9)

    def relu(self, x: str) -> str:
        return self.node("Relu", [x], self.channels[x])

    def conv_bn_relu(
        self,
        x: str,
        name: str,
        out_channels: int,
        *,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        groups: int = 1,
        epsilon: float = 1e-5,
    ) -> str:
        x = self.conv(x, f"{name}.conv", out_channels, kernel, stride, padding, groups=groups)
        return self.relu(self.batch_norm(x, f"{name}.bn", epsilon=epsilon))

    def leaky_relu(self, x: str, slope: float) -> str:
        return self.node("LeakyRelu", [x], self.channels[x], alpha=slope)

    def upsample(self, x: str) -> str:
        """Double height and width by repeating every pixel, as torch exports it."""
        scales = self._parameter(f"upsample.{x}.scales", np.array([1, 1, 2, 2], np.float32))
        rule = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.node("Resize", [x, "", scales], self.channels[x], **rule)

    def add(self, a: str, b: str) -> str:
        return self.node("Add", [a, b], self.channels[a])

    def concat(self, values: Sequence[str]) -> str:
        return self.node("Concat", values, sum(self.channels[v] for v in values), axis=1)

    def scale(self, x: str, name: str, factor: float) -> str:
        return self.node("Mul", [x, self._parameter(name, np.float32(factor))], self.channels[x])

    def max_pool(self, x: str, kernel: int, stride: int, *, padding: Padding = 0, ceil: bool = False) -> str:
        return self.node(
            "MaxPool",
            [x],
            self.channels[x],
            ceil_mode=int(ceil),
            kernel_shape=[kernel] * 2,
            pads=_pads(padding),
            strides=[stride] * 2,
        )

    def average_pool(self, x: str, kernel: int, stride: int, *, padding: Padding = 0, include_pad: bool = True) -> str:
        """Add an average pooling. `include_pad` says whether padding counts as zeros, as in torch."""
        return self.node(
            "AveragePool",
            [x],
            self.channels[x],
            count_include_pad=int(include_pad),
            kernel_shape=[kernel] * 2,
            pads=_pads(padding),
            strides=[stride] * 2,
        )

    def dropout(self, x: str, ratio: float = 0.5) -> str:
        return self.node("Dropout", [x, self._parameter(f"dropout.{x}.ratio", np.float32(ratio))], self.channels[x])

    def global_average_pool(self, x: str) -> str:
        return self.node("GlobalAveragePool", [x], self.channels[x])

    def flatten(self, x: str) -> str:
        return self.node("Flatten", [x], self.channels[x], axis=1)

    def dense(self, x: str, name: str, out_features: int) -> str:
        shape = (out_features, self.channels[x])
        weight = self._parameter(f"{name}.weight", self._normal(shape, np.sqrt(1 / shape[1])))
        bias = self._parameter(f"{name}.bias", self._normal((out_features,), 0.05))
        return self.node("Gemm", [x, weight, bias], out_features, alpha=1.0, beta=1.0, transB=1)

    def model(self, *outputs: str) -> ModelProto:
        """Return the checked model of these outputs (float32), with inferred shapes."""
        results = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None) for output in outputs]
        graph = helper.make_graph(self._nodes, self._name, self._inputs, results, self._initializers)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, producer_name="edgetune", opset_imports=opsets, ir_version=IR_VERSION)
        model = shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        checker.check_model(model)
        return model

    def _normal(self, shape: Sequence[int], deviation: float) -> np.ndarray:
        return self.rng.standard_normal(tuple(shape), dtype=np.float32) * np.float32(deviation)

    def _parameter(self, name: str, value: np.ndarray | np.float32) -> str:
        return self.constant(np.asarray(value, dtype=np.float32), name)

    def constant(self, value: np.ndarray, name: str | None = None) -> str:
        name = name or f"constant_{len(self._initializers)}"
        self._initializers.append(numpy_helper.from_array(value, name))
        return name

    def node(self, op: str, reads: Sequence[str], channels: int = 0, **attributes: object) -> str:
        """Add any operator. `channels` is the channel count of its result, for later layers that ask."""
        number = self._counts.get(op, 0)
        self._counts[op] = number + 1
        output = f"{op.lower()}_{number}"
        self._nodes.append(helper.make_node(op, list(reads), [output], name=f"{op}_{number}", **attributes))
        self.channels[output] = channels
        return output


def _pads(padding: Padding) -> list[int]:
    if isinstance(padding, int):
        return [padding] * 4
    return list(padding) if len(padding) == 4 else [*padding, *padding]
