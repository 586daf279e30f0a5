"""One step of a network by itself: whether a device computes it, in which layouts, as which functions. Start at
`lower_alone`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.ir import IRModule, Var
from tvm.target import Target

from templates.template import PLAIN, Layout
from tuner.errors import BadInput
from tuner.graph.fusion.fuse import FusedGraph, Step, TunedStep
from tuner.graph.ir.hashes import kernel_hash
from tuner.graph.ir.simplify import is_call
from tuner.graph.lowering.emit import Emitter, Forms, convert
from tuner.graph.lowering.kernels import DevicePlan, kernels_of
from tuner.graph.lowering.lower import Given, lower_steps
from tuner.graph.lowering.passes import finish
from tuner.graph.lowering.placed import parameter_for, read_from_elsewhere


@dataclass(frozen=True, eq=False)
class Alone:
    """A step as a network of its own. `reads`: the layout that it wants each variable in, which is what the parameters
    of `module`'s "main" have, in order; `makes`: that of its result."""

    module: IRModule
    reads: Mapping[Var, Layout]
    makes: Layout

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels that it calls, in order, as `kernel_hash` has them."""
        bindings = [binding for block in self.module["main"].body.blocks for binding in block.bindings]
        called = [
            value.args[0] for value in (b.value for b in bindings) if is_call(value, "call_tir", "call_tir_inplace")
        ]
        return tuple(kernel_hash(self.module[function]) for function in called)


def lower_alone(graph: FusedGraph, step: Step, device_plan: DevicePlan, block: int | None = None) -> Alone:
    """One step on one device, in the layout `block` if it is a plain one that can be (see `lower.lower_steps`).

    Raises BadInput if the device cannot compute it.
    """
    plain = dict.fromkeys(read_from_elsewhere((step,)), PLAIN)
    wanted = _lowered(graph, step, device_plan, block=block, layouts=plain)
    found = wanted if wanted.reads == plain else _lowered(graph, step, device_plan, block=block, layouts=wanted.reads)
    return Alone(finish(found.module, device_plan.target), found.reads, found.makes)


def lower_transform(shape: tuple[int, ...], dtype: str, before: Layout, *, to: Layout, target: Target) -> IRModule:
    """A change of layout of a value of plain shape (N, C, H, W): finished, with "main" from one tensor to a tuple of
    one. It has no function where memory stays the same."""
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType(before.shape(shape), dtype))
    with builder.function("main", [data]):
        with builder.dataflow():
            converted = convert(Emitter(builder, target), data, shape, source=before, to=to)
            result = builder.emit_output(relax.Tuple([converted]))
        builder.emit_func_output(result)
    return finish(builder.get(), target)


def runs_on(graph: FusedGraph, step: Step, device_plan: DevicePlan) -> bool:
    """Whether a device can compute a step at all."""
    try:
        lower_alone(graph, step, device_plan)
    except BadInput:
        return False
    return True


def _lowered(
    graph: FusedGraph, step: Step, device_plan: DevicePlan, *, block: int | None, layouts: Mapping[Var, Layout]
) -> Alone:
    """With values in some layouts, and what it asked for; not finished."""
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
    lowered = lower_steps(
        graph, (step,), given, results=results, kernels=kernels, target=device_plan.target, blocks=blocks
    )
    return Alone(lowered.module, {v: asked.get(v, PLAIN) for v in layouts}, made[0])
