"""Bring an ONNX file into the form that the quantizer takes. Start at `prepare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnxruntime
from onnx import helper

from tuner.errors import BadInput, last_line
from tuner.graph.importers.onnx.check import check_onnx, graph_inputs, graphs_of, read_onnx
from tuner.graph.importers.onnx.dtypes import widen_halves
from tuner.graph.importers.onnx.rewrites.quantized import is_quantised
from tuner.graph.importers.onnx.rules import opset_of
from tuner.graph.importers.onnx.shapes import bind_shapes
from tuner.tensors import TensorInfo

_FIRST_SET = 13  # the first operator set whose DequantizeLinear has one scale for each channel


@dataclass(frozen=True)
class Prepared:
    """A float network whose axes have their sizes, whose constants are computed, and whose nodes have names of their
    own. `remarks` are lines about sizes that were assumed."""

    model: onnx.ModelProto
    inputs: tuple[TensorInfo, ...]
    remarks: tuple[str, ...]


def prepare(path: Path, shapes: Mapping[str, Sequence[int]], batch: int | None = None, *, scratch: Path) -> Prepared:
    """Read a file, give its free axes sizes as `load_onnx` does, and let onnxruntime fold constants and batch
    normalisations. Files go to the folder `scratch`.

    Raises BadInput for a file that cannot be read, is quantised already, or that onnxruntime cannot run.
    """
    model, _ = read_onnx(path)
    bound = bind_shapes(model, str(path), shapes, batch)
    check_onnx(path, model)
    if is_quantised(model):
        raise BadInput(f"{path}: is quantised already; give the float network that it was made from")
    widen_halves(model)
    try:
        if opset_of(model) < _FIRST_SET:
            model = onnx.version_converter.convert_version(model, _FIRST_SET)
        model = onnx.shape_inference.infer_shapes(_folded(model, scratch), data_prop=True)
    except Exception as error:  # onnx and onnxruntime have an error type for every reason
        raise BadInput(f"{path}: cannot be prepared for the quantizer ({last_line(error)})") from error
    if len(list(graphs_of(model.graph))) > 1:
        raise BadInput(f"{path}: has control flow that depends on the inputs' values; export without it")
    _name_nodes(model.graph)
    return Prepared(model, tuple(map(_described, graph_inputs(model.graph))), bound.remarks)


def _folded(model: onnx.ModelProto, scratch: Path) -> onnx.ModelProto:
    """Return the model as onnxruntime's basic optimisations leave it: constants are computed, and batch normalisations
    are part of the convolutions before them."""
    given, result = scratch / "given.onnx", scratch / "folded.onnx"
    onnx.save(model, given)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(result)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(given), options, providers=["CPUExecutionProvider"])
    return onnx.load(result)


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Give each node without a name, or with one that another node has, a name of its own."""
    taken: set[str] = set()
    for node in graph.node:
        name = base = node.name or f"{node.op_type}:{node.output[0]}"
        count = 1
        while name in taken:
            count += 1
            name = f"{base}:{count}"
        node.name = name
        taken.add(name)


def _described(value: onnx.ValueInfoProto) -> TensorInfo:
    tensor = value.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    return TensorInfo(value.name, tuple(dim.dim_value for dim in tensor.shape.dim), dtype)
