"""What all vendors' templates have in common: `VendorTemplate`."""

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
    """One config: the library's version, so that times of another are not taken for it. `function`: the global
    function that its kernels call."""

    def __init__(self, vendor: str, version: str, op: str) -> None:
        self.version_here, self.op = version, op
        self.name = f"{PREFIX}{op}_{vendor}"
        self.function = f"edgetune.{self.name}"

    @abstractmethod
    def applies(self, workload: Workload, target: Target) -> bool:
        """Whether the library computes a float32 workload there."""

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        return Layouts(PLAIN, PLAIN)

    def space(self, workload: Workload, target: Target) -> Space | None:
        if not self.applies(workload, target):
            return None
        return Space(self.name, (Knob("version", (self.version_here,)),), seeds=({},))

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(weight)
