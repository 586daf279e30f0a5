"""The built module itself, as one contender among its peers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np

from tuner.report.peers.base import Inference


class Ours:
    name = "edgetune"
    module = "tuner"
    install = "pip install edgetune"

    def version(self) -> str:
        return f"edgetune {version('edgetune')}"

    def open(self, source: Path, threads: int) -> Inference:
        from tuner.module import load

        del threads  # TVM_NUM_THREADS, which its caller has set, says it
        module = load(source)

        def infer(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return module(inputs)

        return infer
