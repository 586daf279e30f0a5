"""Runs TVM's own default pipeline on the same model, which is what one gets without tuning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tuner.report.peers.base import Inference, Shapes


class TvmDefault:
    """A peer that runs TVM's default pipeline, without tuning and without schedules of ours."""

    name = "default"
    modules: tuple[str, ...] = ("tvm",)
    install = "pip install edgetune"

    def version(self) -> str:
        import tvm

        return f"tvm {tvm.__version__} default pipeline"

    def open(self, source: Path, threads: int, shapes: Shapes) -> Inference:
        import onnx
        import tvm
        from tvm import relax
        from tvm.relax.frontend.onnx import from_onnx

        from tuner.devices import open_device

        model = onnx.load(source)
        weights = {tensor.name for tensor in model.graph.initializer}
        names = [value.name for value in model.graph.input if value.name not in weights]
        outputs = [value.name for value in model.graph.output]
        executable = tvm.compile(
            from_onnx(model, shape_dict={name: list(shape) for name, shape in shapes.items()}),
            target=open_device("cpu", threads).target,
        )
        main = relax.VirtualMachine(executable, tvm.cpu())["main"]

        def infer(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            result = main(*(tvm.runtime.tensor(inputs[name]) for name in names))
            results = [result] if len(outputs) == 1 and isinstance(result, tvm.runtime.Tensor) else list(result)
            return dict(zip(outputs, (r.numpy() for r in results), strict=True))

        return infer
