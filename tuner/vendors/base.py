"""Define `VendorTemplate`, which is what all vendors' templates have in common."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from tvm.target import Target

from templates.space import Knob, Space
from templates.template import PLAIN, AnchorTemplate, Layouts
from tuning_db.record import Config, Workload

PREFIX = "vendor."
OPS = ("conv2d", "dense")


class VendorTemplate(AnchorTemplate):
    """A template that has one config: the library's version, so that times of another version are not taken for this
    one's. `function` is the global function that its kernels call."""

    def __init__(self, vendor: str, version: str, op: str) -> None:
        self.version_here, self.op = version, op
        self.name = f"{PREFIX}{op}_{vendor}"
        self.function = f"edgetune.{self.name}"

    @abstractmethod
    def applies(self, workload: Workload, target: Target) -> bool:
        """Return whether the library computes a float32 workload on the target."""

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        return Layouts(PLAIN, PLAIN)

    def space(self, workload: Workload, target: Target) -> Space | None:
        if not self.applies(workload, target):
            return None
        return Space(self.name, (Knob("version", (self.version_here,)),), seeds=({},))

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(weight)
