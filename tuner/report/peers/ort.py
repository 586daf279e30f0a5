"""onnxruntime's CPU execution provider with every graph optimisation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tuner.report.peers.base import Inference


class OnnxRuntime:
    """onnxruntime's CPU provider."""

    name = "ort"
    module = "onnxruntime"
    install = "pip install onnxruntime"

    def version(self) -> str:
        import onnxruntime

        return f"onnxruntime {onnxruntime.__version__}"

    def open(self, source: Path, threads: int) -> Inference:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]

        def infer(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return dict(zip(names, session.run(names, dict(inputs)), strict=True))

        return infer
