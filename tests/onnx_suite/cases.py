"""The cases of ONNX's backend suite: models, inputs and the outputs that ONNX wants of them. Start at `names`."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from tuner.module import OnnxReference

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")  # the last are those of the folder "light"

# What real files hold as constants and these tests give as inputs: operands by their names in ONNX's specification.
_CONSTANTS = """
shape axes axis pads starts ends steps repeats k K sizes scales roi split depth output_shape size block_shape W R B P
bias scale mean var input_mean input_var w b ratio training_mode zero_point x_scale x_zero_point y_scale y_zero_point
w_scale w_zero_point a_scale a_zero_point b_scale b_zero_point max_output_boxes_per_class iou_threshold score_threshold
start limit delta num_mel_bins dft_length sample_rate lower_edge_hertz upper_edge_hertz constant_value target_shape
image_shape exponent window frame_step frame_length M trip_count max_trip_count cond sequence_lens cos_cache sin_cache
position_ids
"""


@dataclass(frozen=True)
class Case:
    """`model` with sets of inputs, by name, and of the outputs wanted of it, in its order. `rtol` and `atol` are those
    of ONNX."""

    name: str
    kind: str
    model: onnx.ModelProto
    data: Sequence[tuple[dict[str, Any], list[Any]]]
    rtol: float
    atol: float

    @property
    def operator(self) -> str:
        """Name the operators that it tests, as far as its nodes say it."""
        kinds = sorted({node.op_type for node in self.model.graph.node})
        if self.name.endswith("_expanded") or "_expanded_" in self.name:
            return self.name.removeprefix("test_").partition("_expanded")[0].partition("_")[0] + " (expanded)"
        return kinds[0] if len(kinds) == 1 else ", ".join(kinds) if len(kinds) < 4 else self.name

    def frozen(self) -> Case | None:
        """The same with what real files hold as constants given so; None where nothing changes."""
        names = {
            read
            for node in self.model.graph.node
            for read, formal in zip(node.input, _formals(node), strict=False)
            if formal in _CONSTANTS.split() and read
        }
        names &= {value.name for value in self.model.graph.input}
        names = {name for name in names if isinstance(self.data[0][0].get(name), np.ndarray | np.generic)}
        if not names or len(names) == len(self.model.graph.input):
            return None
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        given = self.data[0][0]
        model.graph.initializer.extend(numpy_helper.from_array(np.asarray(given[name]), name) for name in sorted(names))
        inputs = [value for value in model.graph.input if value.name not in names]
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        data = [({n: v for n, v in inputs.items() if n not in names}, outputs) for inputs, outputs in self.data[:1]]
        return Case(self.name, self.kind, model, data, self.rtol, self.atol)


def _formals(node: onnx.NodeProto) -> Iterable[str]:
    if not onnx.defs.has(node.op_type, node.domain):
        return ()
    return [formal.name for formal in onnx.defs.get_schema(node.op_type, node.domain).inputs]


@functools.cache
def _tests(kind: str) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of infinities that are meant
        return {test.name: test for test in load_model_tests(kind=kind)}


def names() -> list[str]:
    """The names of all cases, with their kinds: "node/test_abs"."""
    return [f"{kind}/{name}" for kind in KINDS for name in sorted(_tests(kind))]


def case_named(name: str) -> Case:
    """The case of one of `names`."""
    kind, _, rest = name.partition("/")
    test = _tests(kind)[rest]
    if test.model is not None:
        model, data = test.model, test.data_sets
    else:
        path = Path(test.model_dir or Path(onnx.__file__).parents[1] / test.url)
        model, data = _light(path) if path.suffix == ".onnx" else _folder(path)
    inputs = [value.name for value in _given(model)] if kind == "real" else [value.name for value in model.graph.input]
    sets = [(dict(zip(inputs, map(_array, given), strict=False)), list(map(_array, wanted))) for given, wanted in data]
    return Case(rest, kind, model, sets, test.rtol, test.atol)


def _array(value: Any) -> Any:
    """Some tests have a tensor as the file's message."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _given(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def _folder(path: Path) -> tuple[onnx.ModelProto, list[Any]]:
    """A model with its sets of tensors."""
    model = onnx.load(path / "model.onnx")

    def tensors(folder: Path, kind: str, values: Iterable[onnx.ValueInfoProto]) -> list[Any]:
        return [_tensor(folder / f"{kind}_{i}.pb", value) for i, value in enumerate(values)]

    return model, [
        (tensors(folder, "input", model.graph.input), tensors(folder, "output", model.graph.output))
        for folder in sorted(path.glob("test_data_set_*"))
    ]


def _tensor(file: Path, value: onnx.ValueInfoProto) -> Any:
    """None where it is not a tensor, or not given."""
    if value.type.HasField("tensor_type") and file.exists():
        return numpy_helper.to_array(onnx.load_tensor(file))
    return None


def _light(path: Path) -> tuple[onnx.ModelProto, list[Any]]:
    """A model whose weights are all equal; its inputs rise in equal steps from 0 to 1, as onnx's runner has them."""
    model = onnx.load(path)
    shapes = [[d.dim_value or 1 for d in value.type.tensor_type.shape.dim] for value in _given(model)]
    given = [np.linspace(0, 1, int(np.prod(s)), endpoint=False, dtype=np.float32).reshape(s) for s in shapes]
    named = dict(zip((value.name for value in _given(model)), given, strict=True))
    return model, [(given, list(OnnxReference(path)(named).values()))]
