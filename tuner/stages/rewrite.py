"""Rewrites a network in stages: the same kernel calls in another order, with calls of the runtime that switch and join
streams (`opencl/runtime/stages.cc`). On the host, one call of the thread pool runs each stage of several groups
(`parallel/stage.c`). Start at `staged`.

The memory of tensors is planned afterwards. The planner looks at the last use of each tensor in the order of calls, as
if they ran one by one. Groups do not run one by one: what a stage reads or writes must not be reused before the stage
has ended. So every tensor that a group touches is an operand of the call that joins the groups, or of the one call that
runs the stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule, Var

from tuner.devices.opencl import ASIDE, BACK, JOIN
from tuner.devices.parallel.stage import STAGE, stage_arguments
from tuner.errors import BadInput
from tuner.graph import MergedOperator, Placed, PlacedOperator
from tuner.graph.ir.bindings import with_leaves
from tuner.stages.calls import Calls
from tuner.stages.merge import MergedKernel, Merging, operators_by_call
from tuner.stages.schedule import Stage


def staged(
    placed: Placed, calls: Calls, schedule: Sequence[Stage], *, keep: bool = True, merging: Merging | None = None
) -> Placed:
    """Return the network with its calls in a schedule's stages, and its operators in the order in which they are
    launched.

    With `keep`, tensors live as long as their stage. Without it results are wrong, which only tests use. `merging`
    provides the kernels of merged stages. Raises BadInput for a merged stage that has none, and for a stage of several
    groups on the host whose groups have no threads (see `Stage.divided`).
    """
    vdevices = placed.module.global_infos["vdevice"]
    for stage in schedule:
        concurrent = len(stage.groups) > 1 and not stage.merged
        if concurrent and bool(stage.threads) != (vdevices[0].target.kind.name == "llvm"):
            raise BadInput(f"stage {stage.text()}: groups have threads on the host, and on no other device")
    rewriting = _Rewriting(calls, keep, _kernels(schedule, merging))
    module = rewriting.rewritten(schedule)
    module.update_global_info("vdevice", vdevices)
    operators = tuple(_operators(placed, calls, schedule, rewriting.merged))
    return replace(placed, module=module, operators=operators, stages=tuple(stage.text() for stage in schedule))


def _kernels(schedule: Sequence[Stage], merging: Merging | None) -> dict[Stage, MergedKernel]:
    found = {}
    for stage in schedule:
        if stage.merged:
            kernel = None if merging is None else merging.kernel(stage)
            if kernel is None:
                raise BadInput(f"stage {stage.text()}: no kernel computes its operators as one")
            found[stage] = kernel
    return found


def _operators(
    placed: Placed, calls: Calls, schedule: Sequence[Stage], merged: Mapping[Stage, MergedOperator]
) -> Iterator[PlacedOperator | MergedOperator]:
    """Yield the operators in launch order, followed by those that no call computes."""
    by_call = operators_by_call(placed, calls)
    for stage in schedule:
        if stage.merged:
            yield merged[stage]
        else:
            yield from (by_call[i] for group in stage.launched for i in group if i in by_call)
    called = {id(operator) for operator in by_call.values()}
    yield from (operator for operator in placed.operators if id(operator) not in called)


class _Rewriting:
    """Builds the new main. `_new` maps the old one's variables to new ones, and `merged` the merged stages to the
    operators that they became."""

    def __init__(self, calls: Calls, keep: bool, kernels: Mapping[Stage, MergedKernel]) -> None:
        self._calls = calls
        self._keep = keep
        self._kernels = kernels
        self.merged: dict[Stage, MergedOperator] = {}
        functions = {g: f for g, f in calls.module.functions.items() if isinstance(f, tirx.PrimFunc)}
        self._builder = relax.BlockBuilder(IRModule(functions))
        self._new: dict[Var, Any] = {}

    def rewritten(self, schedule: Sequence[Stage]) -> IRModule:
        main = self._calls.main
        self._new = {p: p for p in main.params}
        with self._builder.function("main", list(main.params), attrs=dict(main.attrs.items()) if main.attrs else None):
            for stage in schedule:
                self._stage(stage)
            self._builder.emit_func_output(self._renamed(main.body.body))
        return self._builder.get()

    def _stage(self, stage: Stage) -> None:
        if stage.merged:
            self._merged(stage)
        elif stage.threads and len(stage.groups) > 1:
            self._together(stage)
        else:
            self._groups(stage)

    def _merged(self, stage: Stage) -> None:
        kernel = self._kernels[stage]
        function = self._builder.add_func(kernel.function, kernel.name)
        arguments = [self._renamed(argument) for argument in kernel.arguments]
        self._builder.emit(relax.Call(function, arguments, ty_args=[relax.TupleType([])]))
        self.merged[stage] = kernel.operator(function.name_hint)

    def _together(self, stage: Stage) -> None:
        """Emit one call of all groups. Memory planning sees everything that they touch used in this call, so that no
        two tensors share memory."""
        groups = []
        for group, threads in zip(stage.launched, stage.threads[::-1], strict=True):
            values = [with_leaves(self._calls.kernels[i].value, self._renamed) for i in group]
            groups.append((threads, [(tvm.ir.StringImm(v.op.name_hint), v.op, v.args) for v in values]))
        arguments = [tirx.IntImm("int64", a) if isinstance(a, int) else a for a in stage_arguments(groups)]
        self._packed(STAGE, *arguments)

    def _groups(self, stage: Stage) -> None:
        kernels = self._calls.kernels
        members = [kernels[i] for group in stage.groups for i in group]
        touched = dict.fromkeys(root for call in members for root in (*call.writes, *call.reads))
        *aside, last = stage.launched
        for group in aside:
            self._packed(ASIDE, self._renamed(kernels[group[0]].writes[0]))
            self._group(group)
        if aside:
            self._packed(BACK)
        self._group(last)
        if aside:
            self._packed(JOIN, *(self._new[root] for root in touched if self._keep))

    def _group(self, group: Sequence[int]) -> None:
        for i in group:
            value = self._calls.kernels[i].value
            self._builder.emit(with_leaves(value, self._renamed))

    def _packed(self, name: str, *tensors: Any) -> None:
        self._builder.emit(relax.Call(relax.ExternFunc(name), list(tensors), ty_args=[relax.TupleType([])]))

    def _renamed(self, expr: Any) -> Any:
        """Return the new variable of an old one, and emit it where it is first needed. Its memory stays what its name
        says."""
        if not isinstance(expr, Var):
            return expr
        if expr not in self._new:
            made = with_leaves(self._calls.values[expr], self._renamed)
            self._new[expr] = made if isinstance(made, Var) else self._builder.emit(made)
        return self._new[expr]
