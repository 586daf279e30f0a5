"""From a checked ONNX model to Relax: TVM's importer, with node names kept and a few converters of our own.

Ours replace those that emit finished loops (Clip, Pad) or a stack and a reduction (Sum, Min, Max) where a Relax
operator exists, because only operators can be fused behind an anchor. Start at `import_onnx`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from tuner.errors import BadInput

Inputs = Sequence[Any]
Attributes = dict[str, Any]


def import_onnx(model: onnx.ModelProto, source: str) -> tuple[tvm.IRModule, dict[str, str]]:
    """The Relax module, and which node each of its variables came from. Raises BadInput naming a node that fails."""
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    importer = _Importer(source)
    with contextlib.redirect_stdout(sys.stderr):  # TVM prints the operator that it fails on
        module = importer.from_onnx(model.graph, opset)
    return module, importer.node_names


class _Importer(ONNXGraphImporter):  # type: ignore[misc]
    """Emits every node's result under the node's name."""

    def __init__(self, source: str) -> None:
        super().__init__({}, "float32", sanitize=False)
        self.node_names: dict[str, str] = {}
        self._source = source

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        for node in graph.node:
            node.name = node.name or node.output[0]
        super()._construct_nodes(graph)

    def _convert_operator(self, op_name: str, inputs: Inputs, attrs: Attributes, opset: int) -> Any:
        node = attrs["tvm_custom"]["name"]
        try:
            result = self._own_result(op_name, inputs, attrs)
            if result is None:
                result = super()._convert_operator(op_name, inputs, attrs, opset)
        except BadInput:
            raise
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise BadInput(f"{self._source}: node {node!r} ({op_name}) cannot be converted: {reason}") from error
        if isinstance(result, tvm.ir.Call) and isinstance(result.ty, relax.TensorType):
            result = self.bb.emit(result, name_hint=re.sub(r"\W+", "_", node).strip("_") or "node")
            self._name(result, node)
        return result

    def _name(self, var: Any, node: str) -> None:
        """Remember where a variable came from, and those that it was made of."""
        bound = self.bb.lookup_binding(var) if isinstance(var, tvm.ir.Var) else None
        if bound is None or var.name in self.node_names:
            return
        self.node_names[var.name] = node
        for operand in getattr(bound, "args", ()):
            self._name(operand, node)

    def _own_result(self, op_name: str, inputs: Inputs, attrs: Attributes) -> Any:
        """The result of a converter of ours, or None where TVM's is to be used."""
        operands = [inputs[i] for i in range(len(inputs))]
        if op_name == "Conv":
            _resolve_auto_pad(operands, attrs)
            return None
        convert = _CONVERTERS.get(op_name)
        if convert is None or not any(isinstance(x, tvm.ir.Var) for x in operands):
            return None
        result = convert(operands, attrs)
        return None if result is None else self.bb.normalize(result)


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
    "Max": _chain(relax.op.maximum),
    "Min": _chain(relax.op.minimum),
    "Pad": _pad,
    "Sum": _chain(relax.op.add),
}
