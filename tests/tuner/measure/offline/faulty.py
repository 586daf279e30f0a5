"""A dense template for GPUs whose knob `does` makes it fail in every way that compiling without a device can show.

Importing this module registers it (it is used as a plugin); it applies to `DENSE` alone.
"""

from __future__ import annotations

import os
import time

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.gpu.limits import gpu_limits
from templates.space import Constraint, Knob, Space
from templates.template import PLAIN, AnchorTemplate, Layouts, ScheduleError, register
from templates.workloads import Dense, anchor_of
from tuner.measure import Candidate
from tuning_db.record import Config, Workload

DENSE = Dense(rows=8, in_features=768, out_features=128)
WORKLOAD = DENSE.workload()
NAME = "test.faulty"
KINDS = ("good", "group", "local", "host", "undefined", "spills", "raises", "refuses", "aborts", "hangs")


class Faulty(AnchorTemplate):
    name, op = NAME, "dense"

    def space(self, workload: Workload, target: Target) -> Space | None:
        limits = gpu_limits(target)
        if limits is None or workload != WORKLOAD:
            return None
        knobs = Knob("does", KINDS), Knob("items", (16, 32, 64, 4096))
        fits = Constraint(f"more than {limits.max_threads} items", lambda v: v["items"] <= limits.max_threads)
        return Space(self.name, knobs, (fits,), seeds=({"does": "good"}, {"does": "undefined"}))

    def layouts(self, workload: Workload, target: Target) -> Layouts:
        return Layouts(PLAIN, PLAIN)

    def pack_weight(self, workload: Workload, target: Target, config: Config, weight: np.ndarray) -> np.ndarray:
        return weight

    def prim_func(self, workload: Workload, target: Target, config: Config) -> tirx.PrimFunc:
        does, limits = config["does"], gpu_limits(target)
        assert limits is not None
        if does == "raises":
            raise ValueError("the first line\nValueError: the last line")
        if does == "refuses":
            raise ScheduleError("no such tile")
        if does == "aborts":
            os.abort()
        if does == "hangs":
            time.sleep(3600)
        schedule = Schedule(_computation(does == "undefined"))
        if does == "host":
            return schedule.mod["main"]
        if does == "spills":
            return _spilling(schedule)
        return _simple(schedule, limits.max_threads * 2 if does == "group" else config["items"], does == "local")


def _computation(undefined: bool) -> tirx.PrimFunc:
    dense = anchor_of(WORKLOAD)
    assert isinstance(dense, Dense)
    data = te.placeholder(dense.data_shape, name="data")
    weight = te.placeholder(dense.weight_shape, name="weight")
    k = te.reduce_axis((0, dense.in_features), "k")
    total = te.compute(dense.out_shape, lambda i, j: te.sum(data[i, k] * weight[j, k], axis=k), name="dense")

    def out(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        return tirx.call_pure_extern("float32", "frobnicate", total[i, j]) if undefined else total[i, j]

    return te.create_prim_func([data, weight, te.compute(dense.out_shape, out, name="out")])


def _simple(schedule: Schedule, items: int, local: bool) -> tirx.PrimFunc:
    """An item an output value; `local`: with all weights in local memory."""
    total, out = (schedule.get_sblock(name) for name in ("dense", "out"))
    fused = schedule.fuse(*schedule.get_loops(out))
    group, item = schedule.split(fused, [None, items])
    schedule.bind(group, "blockIdx.x")
    schedule.bind(item, "threadIdx.x")
    schedule.compute_at(total, item)
    schedule.set_scope(total, 0, "local")
    if local:
        copy = schedule.cache_read(total, 1, "shared")
        schedule.compute_at(copy, group)
        lanes = schedule.fuse(*schedule.get_loops(copy)[-2:])
        schedule.bind(schedule.split(lanes, [None, items])[1], "threadIdx.x")
    return schedule.mod["main"]


def _spilling(schedule: Schedule) -> tirx.PrimFunc:
    """Two items with 512 sums each."""
    total, out = (schedule.get_sblock(name) for name in ("dense", "out"))
    rows, columns = schedule.get_loops(out)
    item, column = schedule.split(columns, [2, None])
    schedule.reorder(item, rows, column)
    schedule.bind(item, "threadIdx.x")
    schedule.compute_at(total, item)
    schedule.set_scope(total, 0, "local")
    inner, outer, k = schedule.get_loops(total)[-3:]
    schedule.reorder(k, inner, outer)
    for loop in (inner, outer, rows, column):
        schedule.unroll(loop)
    schedule.decompose_reduction(total, k)
    for loop in schedule.get_loops(schedule.get_sblock("dense_init"))[-2:]:
        schedule.unroll(loop)
    return schedule.mod["main"]


def candidate(does: str, items: int = 32) -> Candidate:
    return Candidate(WORKLOAD, Config(NAME, {"does": does, "items": items}))


register(Faulty())
