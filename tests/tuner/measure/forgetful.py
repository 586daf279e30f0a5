"""A template of argsort whose knob `forgets` that many of the last indices. Importing this module registers it (it is
used as a plugin); it applies to `SORT` alone."""

from __future__ import annotations

from tvm import tirx
from tvm.target import Target
from tvm.tirx.script import builder as T

from templates.kernels import Cells, Emitter, function, own, when
from templates.space import Knob, Space
from templates.template import Template, register
from tuner.measure import Candidate
from tuning_db.record import Config, Workload
from vision_ops.argsort import Argsort, ArgsortOperator

SORT = Argsort(1, 40, 40)


class Forgetful(Template):
    """Counts how many values come before each."""

    name = "test.forgetful"
    op = "argsort"

    def space(self, workload: Workload, target: Target) -> Space | None:
        if Argsort.of(workload) != SORT:
            return None
        return Space(self.name, (Knob("forgets", (0, 1)), Knob("wrong", (0, 1))))

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        length, emitter = SORT.length, Emitter.of(target)

        def body(data: Cells, out: Cells) -> None:
            with emitter.launch(length) as (at, _):
                before = own("int32")
                before[0] = tirx.const(0, "int32")
                with T.serial(0, length) as other:
                    earlier = (data[0, other] < data[0, at]) | ((data[0, other] == data[0, at]) & (other < at))
                    before[0] = before[0] + earlier.astype("int32")
                with when(before[0] < length - config["forgets"]):
                    out[0, before[0]] = at if not config["wrong"] else at ^ 1

        return function(ArgsortOperator().operands(workload), body)


register(Forgetful())


def candidate(forgets: int, wrong: int) -> Candidate:
    return Candidate(SORT.workload(), Config("test.forgetful", {"forgets": forgets, "wrong": wrong}))
