"""Lower one step of a network by itself, to see whether a device computes it, in which layouts and by which functions.

Start at `lower_alone`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.ir import IRModule, Var
from tvm.target import Target

from templates.integers import INTEGERS
from templates.template import PLAIN, Layout
from tuner.errors import BadInput
from tuner.graph.fusion.steps import FusedGraph, Step, TunedStep
from tuner.graph.ir.hashes import kernel_hash
from tuner.graph.ir.simplify import is_call
from tuner.graph.lowering.emit import Emitter, Forms, convert
from tuner.graph.lowering.kernels import DevicePlan, kernels_of
from tuner.graph.lowering.lower import Decisions, Given, lower_steps
from tuner.graph.lowering.passes import finish
from tuner.graph.lowering.placed import parameter_for, read_from_elsewhere


@dataclass(frozen=True, eq=False)
class Alone:
    """A step that is lowered as a network of its own.

    `reads` has the layout in which it wants each variable. The parameters of "main" in `module` have these layouts, in
    the same order. `makes` is the layout of its result.
    """

    module: IRModule
    reads: Mapping[Var, Layout]
    makes: Layout

    @property
    def kernels(self) -> tuple[str, ...]:
        """Return the `kernel_hash` of each kernel that it calls, in order."""
        bindings = [binding for block in self.module["main"].body.blocks for binding in block.bindings]
        called = [
            value.args[0] for value in (b.value for b in bindings) if is_call(value, "call_tir", "call_tir_inplace")
        ]
        return tuple(kernel_hash(self.module[function]) for function in called)


def lower_alone(graph: FusedGraph, step: Step, device_plan: DevicePlan, block: int | None = None) -> Alone:
    """Lower one step for one device. A plain step is computed in the layout block `block` if it can be (see
    `lower.lower_steps`).

    Raises BadInput if the device cannot compute the step.
    """
    plain = dict.fromkeys(read_from_elsewhere((step,)), PLAIN)
    wanted = _lowered(graph, step, device_plan, block=block, layouts=plain)
    found = wanted if wanted.reads == plain else _lowered(graph, step, device_plan, block=block, layouts=wanted.reads)
    return Alone(finish(found.module, device_plan.target), found.reads, found.makes)


def lower_transform(shape: tuple[int, ...], dtype: str, before: Layout, *, to: Layout, target: Target) -> IRModule:
    """Return a finished module that changes the layout of a value of plain shape (N, C, H, W). Its "main" takes one
    tensor and returns a tuple of one. It calls no function if the values stay where they are in memory."""
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType(before.shape(shape), dtype))
    with builder.function("main", [data]):
        with builder.dataflow():
            converted = convert(Emitter(builder, target), data, shape, source=before, to=to)
            result = builder.emit_output(relax.Tuple([converted]))
        builder.emit_func_output(result)
    return finish(builder.get(), target)


def lower_conversion(values: int, to: str, target: Target) -> IRModule:
    """Return a finished module that quantises some float32 values to uint8, or makes float32 values of those. Its
    "main" takes one tensor and returns a tuple of one."""
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((values,), "float32" if to == INTEGERS else INTEGERS))
    point = relax.const(3.0, "float32")
    with builder.function("main", [data]):
        with builder.dataflow():
            if to == INTEGERS:
                steps = builder.emit(relax.op.clip(builder.emit(relax.op.add(relax.op.round(data), point)), 0.0, 255.0))
                value = builder.emit(relax.op.astype(steps, to))
            else:
                value = builder.emit(relax.op.subtract(relax.op.astype(data, to), point))
            result = builder.emit_output(relax.Tuple([value]))
        builder.emit_func_output(result)
    return finish(builder.get(), target)


def runs_on(graph: FusedGraph, step: Step, device_plan: DevicePlan) -> bool:
    """Return whether a device can compute a step at all."""
    try:
        lower_alone(graph, step, device_plan)
    except BadInput:
        return False
    return True


def _lowered(
    graph: FusedGraph, step: Step, device_plan: DevicePlan, *, block: int | None, layouts: Mapping[Var, Layout]
) -> Alone:
    """Lower a step whose operands are given in some layouts. The result has the layouts that the step asked for. Its
    module is not finished."""
    asked: dict[Var, Layout] = {}
    made: list[Layout] = []

    def results(forms: Forms) -> list[Any]:
        expr, layout = forms.native(step.out)
        asked.update(forms.asked)
        made.append(layout)
        return [expr]

    kernels = kernels_of([step] if isinstance(step, TunedStep) else [], device_plan)
    blocks = {} if block is None else {step.out: block}
    given = [Given(v, parameter_for(v, layout), layout) for v, layout in layouts.items()]
    decisions = Decisions(kernels, blocks)
    lowered = lower_steps(graph, (step,), given, results=results, decisions=decisions, target=device_plan.target)
    return Alone(lowered.module, {v: asked.get(v, PLAIN) for v in layouts}, made[0])
