"""Runs OpenVINO's CPU plugin for latency, held to float32 (by default it computes in bfloat16 where the CPU can)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tuner.report.peers.base import Inference, Shapes


class OpenVino:
    """A peer that runs OpenVINO's CPU plug-in, held to float32."""

    name = "openvino"
    modules: tuple[str, ...] = ("openvino",)
    install = "pip install openvino"

    def version(self) -> str:
        import openvino

        return f"openvino {openvino.__version__.split('-')[0]}"

    def open(self, source: Path, threads: int, shapes: Shapes) -> Inference:
        import openvino

        core = openvino.Core()
        model = core.read_model(str(source))
        model.reshape({name: list(shape) for name, shape in shapes.items()})
        compiled = core.compile_model(
            model,
            "CPU",
            {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": "f32",
                "INFERENCE_NUM_THREADS": threads,
                "NUM_STREAMS": 1,
            },
        )
        request = compiled.create_infer_request()
        ports = {port.get_any_name(): port for port in compiled.outputs}

        def infer(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            results = request.infer(dict(inputs), share_inputs=True, share_outputs=True)
            return {name: results[port] for name, port in ports.items()}

        return infer
