"""Running one case of the suite as a user's model: load, fuse, lower, compile, run, compare. Start at `outcome_of`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from tests.onnx_suite.cases import Case
from tests.tuner.graph.networks import run
from tuner.errors import BadInput
from tuner.graph import fuse, load_onnx
from tuner.module import OnnxReference

# Two steps of the last digit: the suite rounds to these types behind every operator.
_STEPS = {"float16": 2**-9, "bfloat16": 2**-6}
PASS, REFUSED, WRONG, CRASH = "pass", "refused", "wrong", "crash"


@dataclass(frozen=True)
class Outcome:
    """`status` is one of pass, refused, wrong, crash; `reason` says why it is not pass, in one line."""

    status: str
    reason: str = ""


def outcome_of(case: Case, target: Target, device: tvm.runtime.Device | None = None) -> Outcome:
    """The outcome of a case as it is or, where that is refused, with its constants given as in real files."""
    found = _outcome(case, target, device)
    frozen = case.frozen() if found.status == REFUSED else None
    return found if frozen is None else _outcome(frozen, target, device)


def _outcome(case: Case, target: Target, device: tvm.runtime.Device | None) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.onnx"
        path.write_bytes(case.model.SerializeToString())
        try:
            return _run(case, path, target, device)
        except BadInput as error:
            return Outcome(REFUSED, str(error).replace(f"{path}: ", "").splitlines()[0])
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            return Outcome(CRASH, f"{type(error).__name__}: {lines[-1]}")


def _run(case: Case, path: Path, target: Target, device: tvm.runtime.Device | None) -> Outcome:
    shapes = {
        value.name: case.data[0][0][value.name].shape
        for value in case.model.graph.input
        if isinstance(case.data[0][0].get(value.name), np.ndarray) and _is_free(value)
    }
    graph = fuse(load_onnx(path, shapes=shapes))
    for inputs, wanted in case.data:
        given = {t.name: np.asarray(inputs[t.name]) for t in graph.model.inputs}
        results = run(graph, target, given, device=device)
        fault = _difference(case, results, wanted)
        if fault and _difference(case, results, _onnxruntime(path, given)):  # whose numbers a user has
            return Outcome(WRONG, fault)
    return Outcome(PASS)


def _onnxruntime(path: Path, inputs: Mapping[str, np.ndarray]) -> list[Any]:
    reference = OnnxReference(path)
    return list(reference(inputs).values()) if reference.referee == "onnxruntime" else []


def _is_free(value: Any) -> bool:
    tensor = value.type.tensor_type
    return not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim)


def _difference(case: Case, results: Mapping[str, np.ndarray], wanted: list[Any]) -> str:
    """How the results differ from those wanted, in types, shapes and values; nothing where they do not."""
    if len(wanted) != len(case.model.graph.output):
        return "there is nothing to compare with"
    for output, value in zip(case.model.graph.output, wanted, strict=True):
        found, value = results[output.name], np.asarray(value)
        if (found.dtype, found.shape) != (value.dtype, value.shape):
            return f"{output.name} is {found.dtype}{found.shape}, not {value.dtype}{value.shape}"
        rtol = max(case.rtol, _STEPS.get(str(value.dtype), 0))
        if value.dtype.kind not in "biu":
            found, value = found.astype(np.float64), value.astype(np.float64)
        largest = float(np.abs(value[np.isfinite(value)]).max(initial=0)) if value.dtype.kind == "f" else 0
        close = np.isclose(found, value, rtol=rtol, atol=max(case.atol, 1e-6 * largest), equal_nan=True)
        if not close.all():
            at = tuple(int(i) for i in np.argwhere(~close)[0])
            return f"{output.name} is {found[at]} at {at}, not {value[at]}"
    return ""
