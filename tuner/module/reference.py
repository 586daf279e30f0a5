"""Compute the reference outputs of a model's file, with onnxruntime or with onnx's own evaluator. Start at
`OnnxReference`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from templates.reference import relative_error
from tuner.devices import usable_cpus
from tuner.errors import BadInput, last_line
from tuner.graph import is_quantised, load_weights, widen_singles
from tuner.module.evaluator import evaluator_of

Arrays = Mapping[str, np.ndarray]

# How often the inputs are changed, and by how much of each value: as much as float32 rounds away, and for a quantised
# model as much as a layer may, because a value that then falls into another step changes all that follows.
_DRAWS, _ROUNDING, _LAYER = 5, 1e-7, 1e-5
_LEVEL = "accuracy_level"  # an attribute of MatMulNBits


class OnnxReference:
    """A callable that maps the named inputs of an ONNX file to its named outputs. `referee` names the library that
    computes them: "onnxruntime" if it is installed and runs the file, else "onnx". Raises BadInput if the file cannot
    be evaluated."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        session = _onnxruntime(str(path))
        self.referee = "onnx" if session is None else "onnxruntime"
        self._infer = session or _onnx(path)

    def __call__(self, inputs: Arrays) -> dict[str, np.ndarray]:
        return self._infer(inputs)

    def own_errors(self, inputs: Arrays) -> dict[str, float]:
        """Return how far this reference's results are off by themselves, by output (see
        templates.reference.relative_error). A call takes seconds.

        Results are compared with the same computation in float64, where onnx's evaluator, which does that, supports the
        model, and with the results for inputs that differ by a rounding: a single computation may have been lucky. The
        results of a quantised model are also compared with those of onnxruntime's optimised graph, which computes in
        integers and rounds elsewhere.
        """
        model, found = _read(self._path), self._infer(inputs)
        quantised = is_quantised(model)
        change = _LAYER if quantised else _ROUNDING
        others = [self._for_changed(inputs, change, seed) for seed in range(_DRAWS)]
        exact = _in_float64(model, inputs)
        compared = others if exact is None else [*others, exact]
        if quantised and self._optimised is not None:
            compared.append(self._optimised(inputs))
        return {
            name: max(relative_error(value, np.asarray(results[name])) for results in compared)
            for name, value in found.items()
        }

    @cached_property
    def _optimised(self) -> Callable[[Arrays], dict[str, np.ndarray]] | None:
        """Return what computes the results by onnxruntime's optimised graph, or None if it does not run the file."""
        return _onnxruntime(str(self._path), optimised=True)

    def _for_changed(self, inputs: Arrays, change: float, seed: int) -> dict[str, np.ndarray]:
        """Return the results for inputs whose floating-point values are changed by about `change` of their size."""
        rng = np.random.default_rng(seed)
        return self._infer(
            {
                name: (array * (1 + change * rng.standard_normal(array.shape))).astype(array.dtype)
                if np.issubdtype(array.dtype, np.floating)
                else array
                for name, array in inputs.items()
            }
        )


def _in_float64(model: onnx.ModelProto, inputs: Arrays) -> dict[str, np.ndarray] | None:
    """Return the results of the model, which is changed, in float64. Return None if onnx's evaluator does not support
    it."""
    try:
        widen_singles(model)
        evaluator = evaluator_of(model)
        return dict(zip(evaluator.output_names, evaluator.run(None, dict(inputs)), strict=True))
    except Exception:  # of any type: the evaluator lacks operators, and dtypes of some
        return None


def plain_options() -> Any:
    """Return options of a session of onnxruntime without graph optimisations, on the processors that this process may
    use, whose threads do not spin. Raises ImportError if onnxruntime is missing."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = len(usable_cpus())
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _onnxruntime(path: str, *, optimised: bool = False) -> Callable[[Arrays], dict[str, np.ndarray]] | None:
    """Return a function that runs the file in onnxruntime, without graph optimisations unless it is to be `optimised`.
    Return None if onnxruntime is missing or does not accept the file."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = plain_options()
    if optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4
    read = (lambda: path, lambda: _in_float32(_read(path)).SerializeToString())  # onnxruntime itself follows no links
    for source in reversed(read) if _rounds_data(path) else read:
        try:
            session = onnxruntime.InferenceSession(source(), options, providers=["CPUExecutionProvider"])
            break
        except Exception:  # onnxruntime has an error type per reason: an operator or dtype is missing
            continue
    else:
        return None
    names = [output.name for output in session.get_outputs()]

    def infer(inputs: Arrays) -> dict[str, np.ndarray]:
        try:
            return dict(zip(names, session.run(names, dict(inputs)), strict=True))
        except Exception as error:  # onnxruntime has an error type for every reason
            raise BadInput(f"{path}: onnxruntime cannot run it to verify against: {last_line(error)}") from error

    return infer


def _read(path: str | Path) -> onnx.ModelProto:
    """Return the model with its weights; symbolic links to files of weights are followed."""
    model = onnx.load(str(path), load_external_data=False)
    load_weights(Path(path), model)
    return model


def _rounds_data(path: str) -> bool:
    """Tell whether a file lets onnxruntime round data to eight bits where it multiplies them by 4-bit numbers."""
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # of any type, as the file may be anything: whoever reads it next says what is wrong
        return False
    return any(attribute.name == _LEVEL for node in model.graph.node for attribute in node.attribute)


def _in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """Let a model say, in place, that nothing is rounded beyond float32, and return it."""
    for node in model.graph.node:
        kept = [attribute for attribute in node.attribute if attribute.name != _LEVEL]
        if len(kept) < len(node.attribute):
            del node.attribute[:]
            node.attribute.extend(kept)
    return model


def _onnx(path: str | Path) -> Callable[[Arrays], dict[str, np.ndarray]]:
    try:
        evaluator = evaluator_of(_read(path))
    except Exception as error:
        raise BadInput(f"{path}: cannot be read to verify against: {error}") from error

    def infer(inputs: Arrays) -> dict[str, np.ndarray]:
        try:
            return dict(zip(evaluator.output_names, evaluator.run(None, dict(inputs)), strict=True))
        except Exception as error:  # an operator's implementation may raise any type
            raise BadInput(f"{path}: onnx cannot run it to verify against: {last_line(error)}") from error

    return infer
