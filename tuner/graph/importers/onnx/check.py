"""Read an ONNX file and refuse what cannot be built, with one line that names the file and the node.

Start at `read_onnx`, which reads the file. `check_onnx` checks more once the shapes of the inputs are known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto
from onnx.external_data_helper import ExternalDataInfo, uses_external_data
from tvm.relax.frontend.onnx import onnx_frontend

from tuner.errors import BadInput

EDGETUNE = "edgetune"  # the domain of operators that our rewrites write and our converters take
_OWN = ("", "ai.onnx")
_DOMAINS = (*_OWN, "com.microsoft")  # the last one has onnxruntime's contributed operators
_MAX_CHECKED_BYTES = 2**31 - 1  # protobuf's limit for a message in memory
_DTYPES = {
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.INT8,
    TensorProto.INT16, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8, TensorProto.UINT16,
    TensorProto.UINT32, TensorProto.UINT64, TensorProto.BOOL,
}  # fmt: skip
_MISPLACED = {"SimplifiedLayerNormalization"}  # contributed operators that exporters write as ONNX's own


def known_operators() -> frozenset[str]:
    """Return the names of the ONNX operators that TVM's frontend converts. Control flow is left out."""
    return frozenset(onnx_frontend._get_convert_map()) | {"Constant"}


def read_onnx(path: Path) -> tuple[onnx.ModelProto, str]:
    """Return the model, and the SHA-256 of the file together with the files that it stores weights in.

    Raises BadInput for a missing, truncated or non-ONNX file, an unknown operator or a dtype that cannot be computed
    with.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file; give the path of an ONNX model")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, ValueError, TypeError) as error:
        raise BadInput(f"{path}: not an ONNX model, or a truncated one ({_first_line(error)})") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
    if not model.graph.node or not model.graph.output:
        raise BadInput(f"{path}: not an ONNX model, or an empty one: it has no nodes or no outputs")
    digest = _digest(path, model)
    load_weights(path, model)
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    _check_names(path, model.graph)
    _check_inputs(path, model.graph)
    return model, digest


def load_weights(path: Path, model: onnx.ModelProto) -> None:
    """Read, in place, the tensors that a model stores in files beside it. Links are followed, since caches of
    downloaded models consist of them. A path outside the model's folder is refused.

    Raises BadInput for a file that is refused, cannot be read, or is too short.
    """
    for tensor in _stored_outside(model):
        _load_tensor(path, tensor)


def _stored_outside(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Return the tensors whose data are in files beside the model's: weights and attributes, of inner graphs too."""
    tensors: list[onnx.TensorProto] = []
    for graph in graphs_of(model.graph):
        attributes = [a for node in graph.node for a in node.attribute]
        tensors += [*graph.initializer, *(a.t for a in attributes), *(t for a in attributes for t in a.tensors)]
    return [tensor for tensor in tensors if uses_external_data(tensor)]


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph and all graphs inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from graphs_of(inner)


def _file_of(path: Path, tensor: onnx.TensorProto) -> Path:
    """Return the file that holds a tensor. Raises BadInput if it is outside the model's folder, or is not a file."""
    place = PurePosixPath(ExternalDataInfo(tensor).location)
    if place.is_absolute() or ".." in place.parts or not place.parts:
        raise BadInput(
            f"{path}: the weights {tensor.name!r} are said to be at {str(place)!r}, outside of the model's folder"
        )
    file = path.parent / place
    if file.exists() and not file.is_file():
        raise BadInput(f"{path}: the weights {tensor.name!r} are said to be in {str(place)!r}, which is not a file")
    return file


def _load_tensor(path: Path, tensor: onnx.TensorProto) -> None:
    info, file = ExternalDataInfo(tensor), _file_of(path, tensor)
    try:
        with file.open("rb") as stream:
            stream.seek(info.offset or 0)
            content = stream.read(info.length or -1)
    except OSError as error:
        raise BadInput(f"{path}: {file} cannot be read: {error.strerror or error}") from None
    if info.length and len(content) < info.length:
        raise BadInput(f"{path}: {file} ends before the tensor {tensor.name!r} does")
    tensor.raw_data = content
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def check_onnx(path: Path, model: onnx.ModelProto) -> None:
    """Check a model whose inputs have shapes. Raises BadInput if it is not valid ONNX or an output is not a tensor."""
    shapeless = []
    for value in model.graph.output:  # the checker wants types of outputs, which follow from the nodes anyway
        if value.type.WhichOneof("value") not in (None, "tensor_type"):
            raise BadInput(f"{path}: output {value.name!r} is not a tensor")
        if not value.type.tensor_type.HasField("shape"):
            shapeless.append(value.type.tensor_type)
        value.type.tensor_type.shape.SetInParent()
        if not value.type.tensor_type.elem_type:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    if model.ByteSize() < _MAX_CHECKED_BYTES:
        try:
            onnx.checker.check_model(model)
        except (onnx.checker.ValidationError, ValueError) as error:
            raise BadInput(f"{path}: not a valid ONNX model: {_first_line(error)}") from None
    for tensor in shapeless:  # an empty shape would be that of a single number
        tensor.ClearField("shape")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _digest(path: Path, model: onnx.ModelProto) -> str:
    external = {_file_of(path, tensor) for tensor in _stored_outside(model)}
    digest = hashlib.sha256()
    for file in [path, *sorted(external)]:
        try:
            with file.open("rb") as stream:
                while chunk := stream.read(1 << 20):
                    digest.update(chunk)
        except OSError as error:
            raise BadInput(f"{path}: {file} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def describe_node(node: onnx.NodeProto) -> str:
    """Return the text by which messages name a node."""
    return f"node {node.name or (node.output[0] if node.output else '?')!r} ({node.op_type})"


def check_operators(path: Path, graph: onnx.GraphProto) -> None:
    """Check the nodes that are left after constants were folded and operators written out.

    Raises BadInput for a node that is control flow, has no converter, or has a constant of a dtype that cannot be
    computed with.
    """
    known = known_operators()
    _check_tensors(path, graph)
    for node in graph.node:
        if any(a.HasField("g") or a.graphs for a in node.attribute):
            raise BadInput(
                f"{path}: {describe_node(node)}: control flow that depends on the inputs' values is not supported; "
                "export without it"
            )
        if node.domain == EDGETUNE:
            continue
        if node.op_type not in known or (node.op_type == "Attention" and node.domain in _OWN):
            raise _unsupported(path, node)


def _check_names(path: Path, graph: onnx.GraphProto) -> None:
    """Raise BadInput for an operator of an unknown domain, or one of ONNX's domain that ONNX does not define.
    Contributed operators that were written as ONNX's own get their domain."""
    for node in graph.node:
        if node.op_type in _MISPLACED and node.domain in _OWN:
            node.domain = "com.microsoft"
        own = node.domain in _OWN
        if node.domain not in _DOMAINS or (own and not onnx.defs.has(node.op_type)):
            raise _unsupported(path, node)


def _unsupported(path: Path, node: onnx.NodeProto) -> BadInput:
    domain = f" of domain {node.domain!r}" if node.domain else ""
    return BadInput(f"{path}: {describe_node(node)}: operator {node.op_type!r}{domain} is not supported")


def _dtype_name(elem_type: int) -> str:
    return TensorProto.DataType.Name(elem_type).lower() if elem_type in TensorProto.DataType.values() else "unknown"


def graph_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller gives. Old files list their weights among the inputs too."""
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def _check_inputs(path: Path, graph: onnx.GraphProto) -> None:
    for value in graph_inputs(graph):
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            raise BadInput(f"{path}: input {value.name!r} is not a tensor")
        if tensor.elem_type not in _DTYPES:
            raise BadInput(
                f"{path}: input {value.name!r} has dtype {_dtype_name(tensor.elem_type)}; export the model in float32"
            )


def _check_tensors(path: Path, graph: onnx.GraphProto) -> None:
    users = {name: node for node in reversed(graph.node) for name in node.input}
    tensors = [(tensor, users.get(tensor.name)) for tensor in graph.initializer]
    tensors += [(a.t, node) for node in graph.node for a in node.attribute if a.HasField("t")]
    for tensor, node in tensors:
        if node is not None and tensor.data_type not in _DTYPES:
            raise BadInput(
                f"{path}: {describe_node(node)}: its constant {tensor.name!r} has dtype "
                f"{_dtype_name(tensor.data_type)}; export the model in float32"
            )
