"""A dense template for OpenCL devices whose knob `does` makes its kernel go wrong. Importing this module registers it
(it is used as a plugin); it applies to `DENSE` alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.target import Target

from templates.bounds import at_least
from templates.gpu.limits import gpu_limits
from templates.space import Knob, Space
from templates.stages import new_schedule
from templates.template import PLAIN, AnchorTemplate, Layouts, register
from templates.workloads import Dense, anchor_of
from tuner.measure import Candidate
from tuning_db.record import Config, Workload

DENSE = Dense(rows=5, in_features=24, out_features=16)
WORKLOAD = DENSE.workload(("relu",))
NAME = "test.misbehaving_gpu"
WAYS = ("right", "wrong", "nothing", "bad_source", "endless", "unbound")

# Put before the kernel: a helper that the driver cannot compile.
_BAD_SOURCE = "float broken(float x) { return no_such_function_of_any_driver(x) }\n"


class MisbehavingGpu(AnchorTemplate):
    name = NAME
    op = "dense"

    def space(self, workload: Workload, target: Target) -> Space | None:
        if gpu_limits(target) is None or anchor_of(workload) != DENSE:
            return None
        return Space(self.name, (Knob("does", WAYS), Knob("turn", tuple(range(8)))))

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        return Layouts(PLAIN, PLAIN)

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(weight)

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        does = config["does"]
        data = te.placeholder(DENSE.data_shape, name="data")
        weight = te.placeholder(DENSE.weight_shape, name="weight")
        k = te.reduce_axis((0, DENSE.in_features), "k")
        zero = tirx.const(0.0, "float32")

        def total(i: Any, j: Any) -> Any:
            return te.sum(data[i, k] * weight[j, k], axis=k)

        sums = te.compute(DENSE.out_shape, total, name="sums")
        more = tirx.const(1.0 if does == "wrong" else 0.0, "float32")
        out = te.compute(DENSE.out_shape, lambda i, j: at_least(sums[i, j] + more, zero), name="out")
        sch = new_schedule(te.create_prim_func([data, weight, out]))
        sch.set_scope(sch.get_sblock("sums"), 0, "local")
        rows, columns = sch.get_loops(sch.get_sblock("out"))
        sch.compute_at(sch.get_sblock("sums"), columns)
        if does != "unbound":
            sch.bind(rows, "blockIdx.x")
            sch.bind(columns, "threadIdx.x")
        reduction = sch.get_loops(sch.get_sblock("sums"))[-1]
        some = "gridDim.x" if target.kind.name == "cuda" else "get_global_size(0)"
        if does == "bad_source":
            sch.annotate(reduction, "pragma_import_c", _BAD_SOURCE)
        if does == "endless":
            sch.annotate(reduction, "pragma_import_c", f"#define for while ({some} > 0) for\n")
        if does == "nothing":
            sch.annotate(reduction, "pragma_import_c", f"#define for if ({some} == 0) for\n")
        return sch.mod["main"]


register(MisbehavingGpu())


def candidate(does: str, turn: int = 0) -> Candidate:
    return Candidate(WORKLOAD, Config(NAME, {"does": does, "turn": turn}))
