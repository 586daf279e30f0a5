"""From a checked ONNX model to Relax: TVM's importer, with node names kept and a few converters of our own.

Ours replace those that emit finished loops (Clip, Pad) or a stack and a reduction (Sum, Min, Max) where a Relax
operator exists, because only operators can be fused behind an anchor; those of vision operators, which are templates,
are in onnx_vision. Start at `import_onnx`.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from tuner.errors import BadInput
from tuner.graph.bindings import operands, operands_of
from tuner.graph.model import Count
from tuner.graph.onnx_counts import Node, Uncountable, axis_behind
from tuner.graph.onnx_rules import opset_of
from tuner.graph.onnx_vision import VISION, Counted
from tuner.graph.simplify import constant, is_static

_WINDOWED = ("AveragePool", "Conv", "ConvTranspose", "LpPool", "MaxPool")

Inputs = Sequence[Any]
Attributes = dict[str, Any]


@dataclass(frozen=True)
class Imported:
    """`module`, which node each of its variables came from, and the outputs of which only so many entries are there as
    another result says; those are behind the model's own."""

    module: tvm.IRModule
    node_names: Mapping[str, str]
    counts: Mapping[str, Count]


def import_onnx(model: onnx.ModelProto, source: str) -> Imported:
    """Raises BadInput naming a node that fails."""
    importer = _Importer(source)
    with contextlib.redirect_stdout(io.StringIO()):  # TVM prints the operator that it fails on, which we name
        try:
            module = importer.from_onnx(model.graph, opset_of(model))
        except BadInput:
            importer.bb._end_block()  # TVM warns of one that is not ended
            raise
    return Imported(module, importer.node_names, importer.counts)


class _Importer(ONNXGraphImporter):  # type: ignore[misc]
    """Emits every node's result under the node's name."""

    def __init__(self, source: str) -> None:
        super().__init__({}, "float32", sanitize=False)
        self.node_names: dict[str, str] = {}
        self.counts: dict[str, Count] = {}
        self._counted: dict[Any, Counted] = {}  # by the variable
        self._source = source

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        for node in graph.node:
            node.name = node.name or node.output[0]
        super()._construct_nodes(graph)
        self._return_counts(graph)

    def _return_counts(self, graph: onnx.GraphProto) -> None:
        """Add the counts of counted outputs behind the outputs."""
        index: dict[Any, int] = {}
        results = [output.name for output in graph.output]
        for name in results:
            counted = self._counted.get(self._nodes[name])
            if counted is None:
                continue
            if counted.count not in index:
                index[counted.count] = len(graph.output)
                graph.output.add().name = self._fresh(f"{name}.count", results)
                self._nodes[graph.output[-1].name] = counted.count
            self.counts[name] = Count(counted.axis, index[counted.count])

    def _fresh(self, name: str, taken: Sequence[str]) -> str:
        while name in self._nodes or name in taken:
            name += "_"
        return name

    def _convert_operator(self, op_name: str, inputs: Inputs, attrs: Attributes, opset: int) -> Any:
        node = attrs["tvm_custom"]["name"]
        given = [inputs[i] for i in range(len(inputs))]
        try:
            result = self._own_result(op_name, given, attrs)
            if isinstance(result, Counted):
                self._counted[result.value] = result
                result = result.value
            if result is None:
                result = super()._convert_operator(op_name, inputs, attrs, opset)
            if isinstance(result, tvm.ir.Call) and isinstance(result.ty, relax.TensorType):
                result = self.bb.emit(result, name_hint=re.sub(r"\W+", "_", node).strip("_") or "node")
            for part in operands_of(result):
                self._name(part, node)
                if op_name in _WINDOWED:
                    _check_window(given[0], part)
            return self._followed(Node(op_name, given, attrs, [self._axis(x) for x in given]), result)
        except BadInput:
            raise
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise BadInput(f"{self._source}: node {node!r} ({op_name}) cannot be converted: {reason}") from error

    def _axis(self, operand: Any) -> int | None:
        counted = self._counted.get(operand) if isinstance(operand, tvm.ir.Var) else None
        return None if counted is None else counted.axis

    def _followed(self, node: Node, result: Any) -> Any:
        """The result of a node, of whose parts it is known how much is there if that is known of its operands."""
        if all(axis is None for axis in node.axes):
            return result
        counts = {self._counted[o].count for o, axis in zip(node.inputs, node.axes, strict=True) if axis is not None}
        if len(counts) > 1:
            raise Uncountable("the numbers of its operands' entries are of different origin")
        if isinstance(result.ty, relax.TupleType) and not isinstance(result, relax.Tuple):
            whole = self.bb.emit(result)
            result = relax.Tuple([self.bb.emit(relax.TupleGetItem(whole, i)) for i in range(len(result.ty.fields))])
        parts = list(result.fields) if isinstance(result, relax.Tuple) else [result]
        axis, count = axis_behind(node, parts), counts.pop()
        self._counted.update((part, Counted(part, axis, count)) for part in parts)
        return result

    def _name(self, var: Any, node: str) -> None:
        """Remember where a variable came from, and those that it was made of."""
        bound = self.bb.lookup_binding(var) if isinstance(var, tvm.ir.Var) else None
        if bound is None or var.name in self.node_names:
            return
        self.node_names[var.name] = node
        for operand in operands(bound):
            self._name(operand, node)

    def _own_result(self, op_name: str, inputs: Inputs, attrs: Attributes) -> Any:
        """The result of a converter of ours, or None where TVM's is to be used."""
        if op_name == "Conv":
            _resolve_auto_pad(inputs, attrs)
            return None
        if not any(isinstance(x, tvm.ir.Var) for x in inputs):
            return None
        if op_name in VISION:
            result = VISION[op_name](self.bb, inputs, attrs)
        else:
            result = _CONVERTERS[op_name](inputs, attrs) if op_name in _CONVERTERS else None
        return result if result is None or isinstance(result, Counted) else self.bb.normalize(result)


def _check_window(data: Any, result: Any) -> None:
    """That the window fits at least once, which no converter checks."""
    given, made = ([int(size) for size in x.ty.shape] if is_static(x.ty) else [1] for x in (data, result))
    if min(made) < 1 <= min(given):
        rows = " x ".join(map(str, given[2:]))
        raise ValueError(f"its window is larger than its padded input of {rows}; export the model for larger inputs")


def _resolve_auto_pad(inputs: Inputs, attrs: Attributes) -> None:
    """Write SAME_* as explicit pads: then the padding stays a part of the convolution."""
    mode = attrs.get("auto_pad", b"NOTSET").decode()
    if mode == "VALID":
        attrs["pads"] = (0,) * (2 * (len(inputs[0].ty.shape) - 2))
        del attrs["auto_pad"]
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        return
    sizes = [int(s) for s in inputs[0].ty.shape][2:]
    kernel = attrs.get("kernel_shape") or [int(s) for s in inputs[1].ty.shape][2:]
    strides = attrs.get("strides", (1,) * len(sizes))
    dilations = attrs.get("dilations", (1,) * len(sizes))
    before, after = [], []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((math.ceil(size / stride) - 1) * stride + dilation * (k - 1) + 1 - size, 0)
        small, large = total // 2, total - total // 2
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    attrs["pads"] = (*before, *after)
    del attrs["auto_pad"]


def _scalar(value: Any, default: float) -> float | None:
    """A constant operand's value; `default` if it is absent; None if it is computed."""
    if value is None:
        return default
    if not isinstance(value, tvm.ir.GenericConst):
        return None
    number = float(value.value.numpy().reshape(-1)[0])
    return default if math.isnan(number) else number


def _clip(inputs: Inputs, attrs: Attributes) -> Any:
    if str(inputs[0].ty.dtype) != "float32":
        return None
    low = attrs.get("min", _scalar(inputs[1] if len(inputs) > 1 else None, -math.inf))
    high = attrs.get("max", _scalar(inputs[2] if len(inputs) > 2 else None, math.inf))
    if low is None or high is None:
        return None
    if low == 0 and high == math.inf:
        return relax.op.nn.relu(inputs[0])
    return relax.op.clip(inputs[0], relax.prim_value(low), relax.prim_value(high))


def _chain(operator: Callable[[Any, Any], Any]) -> Callable[[Inputs, Attributes], Any]:
    def convert(inputs: Inputs, _attrs: Attributes) -> Any:
        return functools.reduce(operator, inputs)

    return convert


def _dropout(inputs: Inputs, attrs: Attributes) -> Any:
    training = inputs[2] if len(inputs) > 2 else None
    if attrs["tvm_custom"]["num_outputs"] > 1 or (training is not None and _scalar(training, 0) != 0):
        return None
    return inputs[0]


def _gather(inputs: Inputs, attrs: Attributes) -> Any:
    """Constant indices are checked here, once; TVM warns of those that nobody checks."""
    data, indices = inputs[0], constant(inputs[1])
    if indices is None or not isinstance(data.ty, relax.TensorType):
        return None
    axis = int(attrs.get("axis", 0)) % len(data.ty.shape)
    size = int(data.ty.shape[axis])
    for index in indices.reshape(-1):
        if not -size <= index < size:
            raise ValueError(f"index {index} is outside of axis {axis}, which has {size} entries")
    return relax.op.take(data, relax.const(np.where(indices < 0, indices + size, indices)), axis, mode="clip")


def _pad(inputs: Inputs, attrs: Attributes) -> Any:
    """Constant padding of the trailing axes as relax.nn.pad, which can become a convolution's own padding."""
    if attrs.get("mode", b"constant") != b"constant" or len(inputs) > 3:
        return None
    pads = attrs.get("pads")
    if pads is None:
        if len(inputs) < 2 or not isinstance(inputs[1], tvm.ir.GenericConst):
            return None
        pads = [int(p) for p in inputs[1].value.numpy()]
    value = attrs.get("value", _scalar(inputs[2] if len(inputs) > 2 else None, 0.0))
    rank = len(inputs[0].ty.shape)
    if value is None or min(pads) < 0:
        return None
    width = np.array(pads).reshape(2, rank).T.reshape(-1).tolist()
    return relax.op.nn.pad(inputs[0], width, "constant", float(value))


_CONVERTERS: dict[str, Callable[[Inputs, Attributes], Any]] = {
    "Clip": _clip,
    "Dropout": _dropout,
    "Gather": _gather,
    "Max": _chain(relax.op.maximum),
    "Min": _chain(relax.op.minimum),
    "Pad": _pad,
    "Sum": _chain(relax.op.add),
}
