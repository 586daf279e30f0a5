"""Runs OpenCV's own networks (cv2.dnn) on the CPU, which compute in float32."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tuner.report.peers.base import Inference, Shapes, output_names


class OpenCv:
    """A peer that runs OpenCV's module for networks."""

    name = "opencv"
    modules: tuple[str, ...] = ("cv2",)
    install = "pip install opencv-python-headless"

    def version(self) -> str:
        import cv2

        return f"opencv {cv2.__version__}"

    def open(self, source: Path, threads: int, shapes: Shapes) -> Inference:
        import cv2

        cv2.setNumThreads(threads)
        network = cv2.dnn.readNetFromONNX(str(source))
        names = output_names(source)

        def infer(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            for name, array in inputs.items():
                network.setInput(array, name)
            return dict(zip(names, network.forward(names), strict=True))

        return infer
