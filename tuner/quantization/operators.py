"""Find out which operators of a network can be quantised, and which of them are worth it. Start at `Network`.

Operators are of three sorts:

- Products multiply values by constant weights: convolutions and dense layers. edgetune's kernels compute them in
  integers, and this is where time is won.
- Joints read several values, or all values of a channel, and compute new ones: sums, concatenations, means. They are
  quantised where integers go on to a product, so that the values between products take one byte each.
- Movers choose or move values, such as a maximum or a reshape, and have no quantisation of their own. They work on
  integers where all that reads their results does.

Everything else reads real numbers. An activation behind a product reads the product's sums before they are rounded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import onnx
from onnx import TensorProto, numpy_helper

from templates.integers import multiplies_in_groups
from tuner.graph.importers.onnx.rewrites.writer import attributes_of

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
JOINTS = ("Add", "Mul", "Concat", "GlobalAveragePool")
MOVERS = (
    "AveragePool", "Clip", "Flatten", "MaxPool", "Pad", "Relu", "Reshape", "Resize", "Slice", "Split", "Squeeze",
    "Transpose", "Unsqueeze",
)  # fmt: skip
_ELEMENTWISE = {
    "Add", "Clip", "Div", "Elu", "Erf", "Exp", "HardSigmoid", "LeakyRelu", "Mul", "Neg", "Relu", "Sigmoid", "Softplus",
    "Sub", "Tanh",
}  # fmt: skip
_LONGEST_ACTIVATION = 6  # nodes: a GELU that is written out has five

NO_READER = "no product of integers reads it"


@dataclass(frozen=True)
class Operator:
    """Describes a product or a joint. `multiply_adds` is 0 for a joint. `obstacle` says why it cannot be quantised, and
    is empty for one that can."""

    name: str
    type: str
    multiply_adds: int = 0
    obstacle: str = ""

    @property
    def is_product(self) -> bool:
        """Tell whether it multiplies values by weights."""
        return self.type in PRODUCTS


class Network:
    """The nodes of a prepared model (`prepare.prepare`), and who reads whose results."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._nodes = list(model.graph.node)
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        values = [*model.graph.input, *model.graph.value_info, *model.graph.output]
        self._types = {value.name: value.type.tensor_type for value in values}
        self._makers = {name: node for node in self._nodes for name in node.output if name}
        self._readers: dict[str, list[str]] = defaultdict(list)
        for node in self._nodes:
            for name in node.input:
                self._readers[name].append(node.name)
        self._results = {value.name for value in model.graph.output}

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """All products and joints, in the order of the nodes. Joints that are part of an activation are left out."""
        found = []
        for node in self._nodes:
            if node.domain in ("", "ai.onnx") and node.op_type in PRODUCTS:
                found.append(Operator(node.name, node.op_type, self._multiply_adds(node), self._obstacle(node)))
            elif node.domain in ("", "ai.onnx") and node.op_type in JOINTS and self._is_joint(node):
                found.append(Operator(node.name, node.op_type))
        return tuple(found)

    def quantised(self, operators: Iterable[str]) -> set[str]:
        """Return the nodes to quantise so that these operators work on integers: the operators that are worth it, and
        the movers between them."""
        wanted, chosen = set(operators), set[str]()
        products = {op.name for op in self.operators if op.is_product}
        for node in reversed(self._nodes):
            readers = [name for result in node.output for name in self._readers[result]]
            ends = any(result in self._results for result in node.output)
            on = [name in chosen for name in readers]
            if node.name in wanted:
                is_used = node.name in products or any(on)
            else:
                is_used = self._is_mover(node) and bool(on) and all(on) and not ends
            if is_used:
                chosen.add(node.name)
        return chosen

    def _is_mover(self, node: onnx.NodeProto) -> bool:
        return node.op_type in MOVERS and node.domain in ("", "ai.onnx") and self._is_real(node.input[0])

    def _is_real(self, name: str) -> bool:
        """Tell whether a tensor is computed, in float32."""
        known = self._types.get(name)
        return name not in self._constants and known is not None and known.elem_type == TensorProto.FLOAT

    def _shape(self, name: str) -> tuple[int, ...]:
        """Return the sizes of a tensor, of which unknown ones are 0."""
        if name in self._constants:
            return tuple(self._constants[name].dims)
        return tuple(dim.dim_value for dim in self._types[name].shape.dim) if name in self._types else ()

    def _multiply_adds(self, node: onnx.NodeProto) -> int:
        weight, out = self._shape(node.input[1]), self._shape(node.output[0])
        if node.op_type == "Conv":
            return prod(out) * prod(weight[1:])
        if node.op_type == "ConvTranspose":
            return prod(self._shape(node.input[0])) * prod(weight[1:])
        by_rows = node.op_type == "Gemm" and attributes_of(node).get("transB", 0)
        return prod(out) * (weight[-1] if by_rows else weight[-2] if len(weight) > 1 else prod(weight))

    def _obstacle(self, node: onnx.NodeProto) -> str:
        """Say why a product cannot be computed in integers, or return an empty text."""
        weight = self._constants.get(node.input[1])
        if weight is None or weight.data_type != TensorProto.FLOAT:
            return "its weights are computed"
        if not self._is_real(node.input[0]) or 0 in self._shape(node.output[0]):
            return "the sizes or types of its values are not known"
        if not numpy_helper.to_array(weight).any():
            return "its weights are all 0"
        attrs = attributes_of(node)
        if node.op_type in ("Conv", "ConvTranspose") and (found := _obstacle_of_window(node, weight.dims)):
            return found
        if node.op_type == "MatMul" and len(weight.dims) != 2:
            return "its weights are no matrix"
        if node.op_type == "Gemm" and (
            attrs.get("transA", 0) or (attrs.get("alpha", 1), attrs.get("beta", 1)) != (1, 1)
        ):
            return "it transposes or scales its operands"
        return ""

    def _is_joint(self, node: onnx.NodeProto) -> bool:
        """Tell whether a node joins computed values, and is no part of an activation."""
        reads = [name for name in node.input if name]
        if not all(map(self._is_real, reads)):
            return False
        return node.op_type != "Mul" or not any(self._follows(a, b) for a, b in (reads, reads[::-1]))

    def _follows(self, result: str, source: str) -> bool:
        """Tell whether a tensor is computed from another element by element, as an activation's gate is."""
        for _ in range(_LONGEST_ACTIVATION):
            if result == source:
                return True
            node = self._makers.get(result)
            reads = [] if node is None else [name for name in node.input if name and name not in self._constants]
            if node is None or node.op_type not in _ELEMENTWISE or len(reads) != 1:
                return False
            (result,) = reads
        return result == source


def _obstacle_of_window(node: onnx.NodeProto, weight: Sequence[int]) -> str:
    """Say why a convolution with a weight of these sizes cannot be computed in integers, or return an empty text."""
    groups, (channels, each, *kernel) = attributes_of(node).get("group", 1), weight
    if node.op_type == "ConvTranspose":
        if len(kernel) > 2:
            return "transposed convolutions of volumes have no kernel of integers"
        return "onnxruntime does not quantise transposed convolutions with groups" if groups > 1 else ""
    if groups > 1 and not multiplies_in_groups(groups, channels, each, taps=prod(kernel)):
        return "it has too few channels in groups for a kernel of integers"
    return ""
