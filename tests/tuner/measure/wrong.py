"""A dense template for every device whose knob `does` says how its kernel is wrong where one check would not see it.

Importing this module registers it (it is used as a plugin); it applies to `WORKLOADS` alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx
from tvm.target import Target
from tvm.tirx.script import builder as T

from templates import reference
from templates.kernels import Cells, Emitter, function, held, own, when
from templates.operator import TensorSpec
from templates.space import Knob, Space
from templates.template import PLAIN, AnchorTemplate, Layouts, register
from templates.workloads import Dense, anchor_of
from tuner.measure import Candidate
from tuning_db.record import Config, Workload

NAME = "test.wrong"
ROWS, OUT = 3, 24
RIGHT = "right"
ON_VALUES = {
    "beyond_five": lambda x: tirx.max(tirx.min(x, _f(5)), _f(-5)),
    "denormals_zeroed": lambda x: tirx.Select(tirx.abs(x) < _f(2.0**-126), _f(0), x),
    "nan_swallowed": lambda x: tirx.Select(tirx.isnan(x), _f(0), x),
    "small_values": lambda x: tirx.Select(tirx.all(tirx.abs(x) < _f(1e-3), tirx.abs(x) > _f(1e-20)), x * _f(2), x),
}
WAYS = (
    "second_call",
    *ON_VALUES,
    "out_of_bounds",
    "input_overwritten",
    "weight_overwritten",
    "constant",
    "first_call_alone",
)
# One for each way: a database has one best for each.
WORKLOADS = {does: Dense(ROWS, 40 + i, OUT).workload(("bias",)) for i, does in enumerate((*WAYS, RIGHT))}


def _f(value: float) -> Any:
    return tirx.const(value, "float32")


class Wrong(AnchorTemplate):
    """An item for each sum. A "constant" answer is what the runner's own seed gives, kept beside the weight."""

    name = NAME
    op = "dense"

    def space(self, workload: Workload, target: Target) -> Space | None:
        return Space(self.name, (Knob("does", (*WAYS, RIGHT)),)) if workload in WORKLOADS.values() else None

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        return Layouts(PLAIN, PLAIN)

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        answers = reference.reference(workload, reference.random_operands(workload, seed=0))
        return np.ascontiguousarray(np.concatenate([weight, answers.T.astype(np.float32)], 1))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        does, inputs = config["does"], int(anchor_of(workload).data_shape[1])
        changed = ON_VALUES.get(does, lambda x: x)

        def body(data: Cells, weight: Cells, bias: Cells, out: Cells) -> None:
            with Emitter.of(target).launch(ROWS * OUT) as (at, _):
                i, j = held(at // OUT), held(at % OUT)
                called = tirx.Not(tirx.isnan(out[i, j]))  # over its own results
                total = own("float32")
                total[0] = bias[j]
                with T.serial(0, inputs) as k:
                    total[0] = total[0] + changed(data[i, k]) * weight[j, k]
                if does == "constant":
                    total[0] = weight[j, inputs + i]
                if does == "second_call":
                    total[0] = tirx.Select(called, total[0] + _f(1), total[0])
                if does == "first_call_alone":
                    total[0] = tirx.Select(called, out[i, j], total[0])
                out[i, j] = total[0]
                with when(at == 0):
                    if does == "out_of_bounds":
                        out[ROWS, 0] = _f(1)
                    if does == "input_overwritten":
                        data[0, 0] = data[0, 0] * _f(1 + 2.0**-20)
                    if does == "weight_overwritten":
                        weight[0, 0] = weight[0, 0] * _f(1 + 2.0**-20)

        shapes = {"data": (ROWS, inputs), "weight": (OUT, inputs + ROWS), "bias": (OUT,), "out": (ROWS, OUT)}
        return function([TensorSpec(name, shape, "float32") for name, shape in shapes.items()], body)


register(Wrong())


def candidate(does: str) -> Candidate:
    """The kernel that is wrong in this way, for its own workload."""
    return Candidate(WORKLOADS[does], Config(NAME, {"does": does}))
