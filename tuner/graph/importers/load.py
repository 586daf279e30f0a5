"""Load a network as a `Model`. `load_onnx` loads an ONNX file, and `load_exported` takes a torch.export program."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import tvm
from tvm import relax

from tuner.activity import activity
from tuner.errors import BadInput, last_line
from tuner.graph.importers.onnx.check import check_onnx, check_operators, graph_inputs, read_onnx
from tuner.graph.importers.onnx.dtypes import widen_halves
from tuner.graph.importers.onnx.indexes import entries_chosen
from tuner.graph.importers.onnx.relax import import_onnx
from tuner.graph.importers.onnx.rewrites.dequantized import write_dequantized
from tuner.graph.importers.onnx.rewrites.quantized import is_quantised
from tuner.graph.importers.onnx.rewrites.registry import write_operators
from tuner.graph.importers.onnx.rules import write_old_operators, write_old_rules
from tuner.graph.importers.onnx.shapes import bind_shapes, identity
from tuner.graph.ir.attention import as_attention
from tuner.graph.ir.convolutions import as_conv2d
from tuner.graph.ir.model import Model
from tuner.graph.ir.products import as_batch_matmul
from tuner.graph.ir.simplify import simplify
from tuner.graph.ir.taps import without_idle_taps
from tuner.tensors import TensorInfo

_log = logging.getLogger(__name__)

_DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool",
)  # fmt: skip


def load_onnx(
    path: str | Path, *, shapes: Mapping[str, Sequence[int]] | None = None, batch: int | None = None
) -> Model:
    """Load an ONNX file.

    `shapes` gives, by name, the whole shapes of inputs that have free axes in the file. `batch` is the size of every
    first axis that is free. A free first axis whose size is not given becomes 1 if no other axis is free, and the
    model's `remarks` say so.

    Raises BadInput with one line that names the file and the input or node: for a missing, truncated or non-ONNX
    file, an axis that stays free, an unsupported operator or dtype.
    """
    path = Path(path)
    try:
        with activity(f"reading {path.name}"):
            return _loaded(path, *read_onnx(path), shapes or {}, batch)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # A damaged file makes onnx and NumPy raise errors of many types.
        raise BadInput(f"{path}: cannot be loaded ({type(error).__name__}: {last_line(error)})") from error


def _loaded(
    path: Path, proto: onnx.ModelProto, digest: str, shapes: Mapping[str, Sequence[int]], batch: int | None
) -> Model:
    _log.info("loading %s: %d nodes, operator set %s", path, len(proto.graph.node), _newest_set(proto))
    bound = bind_shapes(proto, str(path), shapes, batch)
    check_onnx(path, proto)
    digest = identity(digest, bound.shapes)
    write_old_rules(proto)
    rounding = "float16" if widen_halves(proto) else "float32"
    if is_quantised(proto):
        rounding = "int8"
        write_dequantized(proto, str(path))
    write_operators(proto, str(path))
    write_old_operators(proto)
    check_operators(path, proto.graph)
    _log.info("folded and written out: %d nodes are left to import", len(proto.graph.node))
    below = entries_chosen(proto)
    inputs = [value.name for value in graph_inputs(proto.graph)]
    outputs = [value.name for value in proto.graph.output]
    imported = import_onnx(proto, str(path))
    model = _model(imported.module, path.stem, inputs, outputs=outputs, digest=digest, source=str(path))
    arguments = tuple(replace(i, below=below.get(i.name)) for i in model.inputs)
    results = tuple(replace(o, count=imported.counts.get(o.name)) for o in model.outputs)
    names = dict(imported.node_names)
    return replace(model, inputs=arguments, outputs=results, node_names=names, remarks=bound.remarks, rounding=rounding)


def _newest_set(proto: onnx.ModelProto) -> int:
    """Return the version of ONNX's own operator set that a model asks for."""
    return max((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def load_exported(program: Any, name: str = "exported") -> Model:
    """Load a `torch.export.ExportedProgram` with static shapes (needs the extra `torch`).

    Raises BadInput for a dynamic shape or an operator that cannot be converted.
    """
    import torch
    from tvm.relax.frontend.torch import from_exported_program

    try:
        module = from_exported_program(program, keep_params_as_input=False)
    except Exception as error:
        raise BadInput(f"{name}: the exported program cannot be converted: {last_line(error)}") from error
    signature = program.graph_signature
    inputs, outputs = list(signature.user_inputs), list(signature.user_outputs)
    digest = hashlib.sha256(str(program.graph).encode())
    for key, tensor in sorted(program.state_dict.items()):
        digest.update(key.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return _model(module, name, inputs, outputs=outputs, digest=digest.hexdigest(), source="torch.export")


def _model(
    module: tvm.IRModule,
    name: str,
    inputs: Iterable[str],
    *,
    outputs: Iterable[str],
    digest: str,
    source: str,
) -> Model:
    """Return the model of a module, with its constants computed and no names of nodes."""
    try:
        module = as_batch_matmul(as_attention(without_idle_taps(as_conv2d(simplify(module)))))
    except Exception as error:
        raise BadInput(f"{source}: its constants cannot be computed: {last_line(error)}") from error
    main = module["main"]
    body = main.body.body.ty
    types = list(body.fields) if isinstance(body, relax.TupleType) else [body]
    arguments = [_tensor_info(source, "input", n, p.ty) for n, p in zip(inputs, main.params, strict=True)]
    results = [_tensor_info(source, "output", n, t) for n, t in zip(outputs, types, strict=False)]  # counts follow
    return Model(name, module, tuple(arguments), tuple(results), digest, source, {})


def _tensor_info(source: str, kind: str, name: str, ty: Any) -> TensorInfo:
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    if shape is None or not all(isinstance(s, tvm.tirx.IntImm) for s in shape):
        raise BadInput(f"{source}: {kind} {name!r} has a shape that is not fixed; export the model with fixed shapes")
    if str(ty.dtype) not in _DTYPES:
        raise BadInput(f"{source}: {kind} {name!r} has dtype {ty.dtype}; export the model in float32")
    return TensorInfo(name, tuple(int(s) for s in shape), str(ty.dtype))
