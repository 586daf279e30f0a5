"""Runs one template's function on random operands and compares it with the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm
from tvm.target import Target

from templates.epilogue import operands
from templates.lowering import lowering_context
from templates.reference import Operands, random_operands, reference, relative_error
from templates.template import Template
from tuning_db.record import Config, Workload


def host_target(mcpu: str | None = None) -> Target:
    triple = tvm.get_global_func("target.llvm_get_system_triple")()
    name = mcpu or tvm.get_global_func("target.llvm_get_system_cpu")()
    return Target({"kind": "llvm", "mcpu": name, "mtriple": triple, "num-cores": 2})


CPU = tvm.cpu()


@dataclass(frozen=True)
class Compiled:
    template: Template
    workload: Workload
    target: Target
    config: Config
    device: tvm.runtime.Device = CPU

    def build(self) -> tvm.runtime.Module:
        """The function, compiled as candidates and modules are."""
        func = self.template.prim_func(self.workload, self.target, self.config)
        with lowering_context():
            return tvm.tirx.build(func, target=self.target)

    def error(self, seed: int = 0) -> float:
        """Largest error relative to the largest reference value."""
        inputs = random_operands(self.workload, seed)
        expected = reference(self.workload, inputs)
        return relative_error(self.run(inputs, expected.shape), expected)

    def run(self, inputs: Operands, shape: tuple[int, ...]) -> np.ndarray:
        return self.call(self.build()["main"], inputs, shape)

    def call(self, function: tvm.runtime.PackedFunc, inputs: Operands, shape: tuple[int, ...]) -> np.ndarray:
        """The result of the compiled function, in plain layout."""
        template, layouts = self.template, self.template.layouts(self.workload, self.target)
        extra = [
            template.pack_bias(self.workload, self.target, array) if step == "bias" else layouts.out.pack(array)
            for step, array in zip(operands(self.workload.epilogue), inputs.extra, strict=True)
        ]
        weight = template.pack_weight(self.workload, self.target, self.config, inputs.weight)
        # Not zeros: an element that the kernel forgets must show.
        out = tvm.runtime.tensor(np.full(layouts.out.shape(shape), np.nan, np.float32), self.device)
        arrays = [layouts.data.pack(inputs.data), weight, *extra]
        function(*(tvm.runtime.tensor(np.ascontiguousarray(a), self.device) for a in arrays), out)
        self.device.sync()
        return layouts.out.unpack(out.numpy(), shape[1])
