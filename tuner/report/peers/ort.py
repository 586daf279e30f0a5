"""Runs onnxruntime's CPU execution provider with every graph optimisation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from tuner.report.peers.base import Inference, Shapes


class OnnxRuntime:
    """A peer that runs onnxruntime's CPU provider."""

    name = "ort"
    modules: tuple[str, ...] = ("onnxruntime",)
    install = "pip install onnxruntime"

    def version(self) -> str:
        import onnxruntime

        return f"onnxruntime {onnxruntime.__version__}"

    def open(self, source: Path, threads: int, shapes: Shapes) -> Inference:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        for name, size in free_sizes(source, shapes).items():
            options.add_free_dimension_override_by_name(name, size)
        session = onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]

        def infer(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return dict(zip(names, session.run(names, dict(inputs)), strict=True))

        return infer


def free_sizes(source: Path, shapes: Shapes) -> dict[str, int]:
    """Return the sizes that the named free axes of a model's inputs have in `shapes`.

    Some exporters write one name, "?", for all free axes. That name and names with several sizes are left free.
    """
    found: dict[str, set[int]] = {}
    for value in onnx.load(str(source), load_external_data=False).graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            if dim.dim_param:
                found.setdefault(dim.dim_param, set()).add(size)
    return {name: min(sizes) for name, sizes in found.items() if len(sizes) == 1 and name != "?"}
