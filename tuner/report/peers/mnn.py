"""Runs MNN's CPU backend, held to float32, on what its converter makes of the ONNX file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tuner.report.peers.base import Inference, Shapes, output_names


class Mnn:
    """A peer that runs Alibaba's MNN."""

    name = "mnn"
    modules: tuple[str, ...] = ("MNN",)
    install = "pip install MNN"

    def version(self) -> str:
        import MNN

        return f"mnn {MNN.version()}"

    def open(self, source: Path, threads: int, shapes: Shapes) -> Inference:
        # Of MNN's distribution. Its script for this installs a package that reports every conversion to its maker.
        import _tools as tools
        from MNN import expr, nn

        runtime = nn.create_runtime_manager(({"backend": "CPU", "numThread": threads, "precision": "high"},))
        names, outputs = list(shapes), output_names(source)
        with TemporaryDirectory() as folder:
            converted = str(Path(folder) / "converted.mnn")
            tools.mnnconvert(["", "-f", "ONNX", "--modelFile", str(source), "--MNNModel", converted, "--bizCode", ""])
            network = nn.load_module_from_file(converted, names, outputs, runtime_manager=runtime)

        def given(array: np.ndarray) -> expr.Var:
            whole = np.issubdtype(array.dtype, np.integer)
            known = array.astype(np.int32 if whole else np.float32, copy=False)
            return expr.const(known, list(array.shape), expr.NCHW, expr.int if whole else expr.float)

        def infer(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            results = network.forward([given(inputs[name]) for name in names])
            plain = [expr.convert(result, expr.NCHW) for result in results]
            return {name: result.read().reshape(result.shape) for name, result in zip(outputs, plain, strict=True)}

        return infer
