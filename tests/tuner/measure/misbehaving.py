"""A dense template, scheduled simply, whose knob `does` makes it go wrong in every way that a candidate can.

Importing this module registers it (it is used as a plugin); it applies to `DENSE` alone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.bounds import at_least
from templates.space import Knob, Space
from templates.template import PLAIN, AnchorTemplate, Layouts, ScheduleError, register
from templates.workloads import Dense, anchor_of
from tests.tuner.measure.scribble import dense_then_erase
from tuner.measure import Candidate
from tuning_db.record import Config, Workload

DENSE = Dense(rows=3, in_features=40, out_features=24)
WORKLOAD = DENSE.workload(("bias", "relu"))
NAME = "test.misbehaving"

_hoard: list[Any] = []


def _allocate_without_end() -> None:
    while True:
        _hoard.append(bytearray(64 << 20))


def _leak() -> None:
    _hoard.append(np.ones(40 << 20, np.uint8))


def _fail() -> None:
    raise ValueError("the first line\nValueError: the last line")


def _vectorize_reduction(schedule: Schedule) -> None:
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("dense"))[-1])


_AT_BUILD = {
    "build_raise": _fail,
    "build_schedule_error": lambda: (_ for _ in ()).throw(ScheduleError("no such tile")),
    "build_segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "build_exit": lambda: os._exit(5),
    "build_sys_exit": lambda: sys.exit(3),
    "build_hang": lambda: time.sleep(3600),
    "build_allocate": _allocate_without_end,
    "build_leak": _leak,
    "build_shout": lambda: print("x" * 100_000),
}


# Called once per element of the output, after the matrix product was computed; from libc, or Python below.
_AT_RUN = {
    "run_abort": lambda: tirx.call_extern("int32", "abort"),
    "run_segfault": lambda: tirx.call_extern("int32", "strlen", tirx.reinterpret("handle", tirx.const(8, "uint64"))),
    "run_exit": lambda: tirx.call_extern("int32", "_exit", 7),
    "run_hang": lambda: tirx.call_extern("int32", "pause"),
    "run_raise": lambda: tirx.call_packed("edgetune.test.fail"),
    "run_allocate": lambda: tirx.call_packed("edgetune.test.allocate"),
}

EVERY = ("good", "wrong", "nan", "erase_data", "build_tvm_schedule_error", *_AT_BUILD, *_AT_RUN)


class Misbehaving(AnchorTemplate):
    name = NAME
    version = 3
    op = "dense"

    def space(self, workload: Workload, target: Target) -> Space | None:
        return Space(self.name, (Knob("does", EVERY), Knob("tile", (1, 2, 4, 8)))) if workload == WORKLOAD else None

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        return Layouts(PLAIN, PLAIN)

    def weight_key(self, workload: Workload, target: Target, config: Config) -> str:
        return ""

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        return weight

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        does = config["does"]
        _AT_BUILD.get(does, lambda: None)()
        if does == "erase_data":
            return dense_then_erase
        dense = anchor_of(workload)
        data = te.placeholder(dense.data_shape, name="data", dtype="float32")
        weight = te.placeholder(dense.weight_shape, name="weight", dtype="float32")
        bias = te.placeholder((dense.out_features,), name="bias", dtype="float32")
        k = te.reduce_axis((0, dense.in_features - (does == "wrong")), "k")
        total = te.compute(dense.out_shape, lambda i, j: te.sum(data[i, k] * weight[j, k], axis=k), name="dense")
        zero = tirx.const(0, "float32")

        def value(i: Any, j: Any) -> Any:
            result = at_least(total[i, j] + bias[j], zero)
            if does == "nan":
                result = tirx.log(result - tirx.const(1e9, "float32"))
            if does in _AT_RUN:
                result = result + tirx.Cast("float32", _AT_RUN[does]())
            return result

        out = te.compute(dense.out_shape, value, name="out")
        schedule = Schedule(te.create_prim_func([data, weight, bias, out]))
        if does == "build_tvm_schedule_error":
            _vectorize_reduction(schedule)
        schedule.split(schedule.get_loops(schedule.get_sblock("dense"))[1], [None, config["tile"]])
        return schedule.mod["main"]


tvm.register_global_func("edgetune.test.fail", _fail)
tvm.register_global_func("edgetune.test.allocate", _allocate_without_end)
register(Misbehaving())


def candidate(does: str, tile: int = 1) -> Candidate:
    return Candidate(WORKLOAD, Config(NAME, {"does": does, "tile": tile}))
