"""Convert a checked ONNX model to Relax. Start at `import_onnx`.

It uses TVM's importer, but keeps the names of nodes and has converters of its own: `converters.elementwise`,
`converters.layers`, and `converters.vision` for operators that templates compute.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from tuner.errors import BadInput, last_line
from tuner.graph.importers.onnx.converters.elementwise import CONVERTERS, Attributes, Inputs
from tuner.graph.importers.onnx.converters.four_bits import FEW_BITS
from tuner.graph.importers.onnx.converters.integers import INTEGERS
from tuner.graph.importers.onnx.converters.layers import LAYERS, after_reduction, before_reduction
from tuner.graph.importers.onnx.converters.recurrent import RECURRENT
from tuner.graph.importers.onnx.converters.vision import VISION, Counted
from tuner.graph.importers.onnx.counts import Node, Uncountable, axis_behind
from tuner.graph.importers.onnx.rules import opset_of
from tuner.graph.importers.onnx.windows import WINDOWED, resolve_window
from tuner.graph.ir.bindings import operands, operands_of, shape_of
from tuner.graph.ir.simplify import as_constant, constant, is_static
from tuner.tensors import Count

_EMITTING = {**VISION, **LAYERS, **RECURRENT, **INTEGERS, **FEW_BITS}
CONVERTED = frozenset(VISION) | frozenset(LAYERS) | frozenset(CONVERTERS)  # operators that have a converter here


@dataclass(frozen=True)
class Imported:
    """A module that was imported from ONNX.

    `node_names` says which node each of its variables came from. `counts` has the outputs whose number of valid entries
    is another result of the module. These results come behind the model's own outputs.
    """

    module: tvm.IRModule
    node_names: Mapping[str, str]
    counts: Mapping[str, Count]


def import_onnx(model: onnx.ModelProto, source: str) -> Imported:
    """Convert a model to Relax. Raises BadInput, naming the node, if a node cannot be converted."""
    importer = _Importer(source)
    with contextlib.redirect_stdout(io.StringIO()):  # TVM prints the operator that it fails on; the error names it
        try:
            module = importer.from_onnx(model.graph, opset_of(model))
        except Exception as error:
            with contextlib.suppress(Exception):  # the block may not have been begun
                importer.bb._end_block()  # TVM warns of a block that is not ended
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"{source}: cannot be converted: {last_line(error)}") from error
    return Imported(module, importer.node_names, importer.counts)


class _Importer(ONNXGraphImporter):  # type: ignore[misc]
    """Emits every node's result under the node's name."""

    def __init__(self, source: str) -> None:
        super().__init__({}, "float32", sanitize=False)
        self.node_names: dict[str, str] = {}
        self.counts: dict[str, Count] = {}
        self._counted: dict[Any, Counted] = {}  # by the variable that holds the value
        self._source = source

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Accept all operators: `check.check_operators` has refused those that neither TVM nor we convert."""

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        for node in graph.node:
            node.name = node.name or node.output[0]
        super()._construct_nodes(graph)
        self._return_counts(graph)

    def _return_counts(self, graph: onnx.GraphProto) -> None:
        """Append the counts of counted outputs to the graph's outputs."""
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

    def _convert_operator(self, op_name: str, inputs: Any, attrs: Attributes, opset: int) -> Any:
        node = attrs["tvm_custom"]["name"]
        given = [inputs[i] for i in range(len(inputs))]
        try:
            result = _sliced(self.bb, given, attrs) if op_name == "Split" else self._own_result(op_name, given, attrs)
            if isinstance(result, Counted):
                self._counted[result.value] = result
                result = result.value
            if result is None:
                if given:
                    inputs[0] = before_reduction(self.bb, op_name, given[0])
                if op_name == "Slice":
                    _order_ends(inputs)
                result = super()._convert_operator(op_name, inputs, attrs, opset)
                if given:
                    result = after_reduction(self.bb, op_name, given[0], result)
            if isinstance(result, tvm.ir.Call) and isinstance(result.ty, relax.TensorType):
                result = self.bb.emit(result, name_hint=re.sub(r"\W+", "_", node).strip("_") or "node")
            for part in operands_of(result):
                self._name(part, node)
                if op_name in WINDOWED:
                    _check_window(given[0], part)
            return self._followed(Node(op_name, given, attrs, [self._axis(x) for x in given]), result)
        except BadInput:
            raise
        except Exception as error:
            raise BadInput(
                f"{self._source}: node {node!r} ({op_name}) cannot be converted: {last_line(error)}"
            ) from error

    def _axis(self, operand: Any) -> int | None:
        counted = self._counted.get(operand) if isinstance(operand, tvm.ir.Var) else None
        return None if counted is None else counted.axis

    def _followed(self, node: Node, result: Any) -> Any:
        """Return the result of a node. If operands are counted, record how many entries of its parts are valid. Raises
        Uncountable if that cannot be told."""
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
        """Remember the node that a variable came from, also for the variables that it was made of."""
        bound = self.bb.lookup_binding(var) if isinstance(var, tvm.ir.Var) else None
        if bound is None or var.name in self.node_names:
            return
        self.node_names[var.name] = node
        for operand in operands(bound):
            self._name(operand, node)

    def _own_result(self, op_name: str, inputs: Inputs, attrs: Attributes) -> Any:
        """Return the result of a converter of ours, or None if TVM's converter is to be used."""
        if op_name in WINDOWED:
            data, weight = shape_of(inputs[0]), shape_of(inputs[min(1, len(inputs) - 1)])  # a pool has no weight
            if data is not None and weight is not None:
                resolve_window(op_name, data, weight, attrs)
        if not any(isinstance(x, tvm.ir.Var) for x in inputs):
            return None
        if op_name in _EMITTING:
            result = _EMITTING[op_name](self.bb, inputs, attrs)
        else:
            result = CONVERTERS[op_name](inputs, attrs) if op_name in CONVERTERS else None
        return result if result is None or isinstance(result, Counted) else self.bb.normalize(result)


def _check_window(data: Any, result: Any) -> None:
    """Check that the window fits into its input at least once, which no converter checks. Raises ValueError if not."""
    given, made = ([int(size) for size in x.ty.shape] if is_static(x.ty) else [1] for x in (data, result))
    if min(made) < 1 <= min(given):
        rows = " x ".join(map(str, given[2:]))
        raise ValueError(f"its window is larger than its padded input of {rows}; export the model for larger inputs")


def _sliced(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: Attributes) -> Any:
    """Return the parts of a Split with an empty part as slices, since TVM splits into parts with elements alone. Return
    None for every other Split."""
    given = constant(inputs[1]) if len(inputs) > 1 and inputs[1] is not None else attrs.get("split")
    sizes = [] if given is None else [int(size) for size in given]
    if 0 not in sizes:
        return None
    ends, axis = np.cumsum(sizes).tolist(), int(attrs.get("axis", 0))
    parts = (
        relax.op.strided_slice(inputs[0], [axis], [end - size], [end]) for size, end in zip(sizes, ends, strict=True)
    )
    return relax.Tuple([builder.emit(part) for part in parts])


def _order_ends(inputs: Any) -> None:
    """Raise the constant ends of a Slice to its starts where they lie before these: the slice is as empty, but TVM
    computes it."""
    if len(inputs) < 3 or (starts := constant(inputs[1])) is None or (ends := constant(inputs[2])) is None:
        return
    steps = constant(inputs[4]) if len(inputs) > 4 and inputs[4] is not None else np.ones_like(starts)
    if steps is not None:
        forwards = (steps > 0) & (starts >= 0) & (ends >= 0)
        inputs[2] = as_constant(np.where(forwards, np.maximum(starts, ends), ends).astype(ends.dtype))
