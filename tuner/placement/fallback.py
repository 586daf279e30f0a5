"""Places a network by CPU fallback: what a GPU can compute stays there, and the rest goes to the CPU. Start at
`fall_back`.

Wang et al., "A Unified Optimization Approach for CNN Model Inference on Integrated GPUs", section 3.1.2, takes two
passes. The first assigns a device to every operator: the GPU if a list knows that the operator performs well there. The
second puts a copy between neighbours on different devices, which `graph.lowering.placed` does for any placement. There
is no such list here: a step goes to the GPU where it can be lowered for it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from tvm.ir import Call, GlobalVar
from tvm.target import Target

from tuner.errors import BadInput
from tuner.graph import DevicePlan, FusedGraph, TunedStep, runs_on
from tuner.graph.fusion.steps import PlainStep, Step
from tuner.graph.ir.bindings import operands
from tuner.placement.memory import memory_on

GPU, CPU = 0, 1  # a placement's devices


def fall_back(
    graph: FusedGraph, gpu: Target, unwanted: Collection[str] = (), memory_bytes: int | None = None
) -> list[int]:
    """Return GPU or CPU for each step. `unwanted` are operators that go to the CPU in any case, by the names of
    `operator_of`. Where the GPU's steps need more than `memory_bytes` of its memory, the last ones go to the CPU, as
    many as have to.

    Raises BadInput for a name that no step has.
    """
    names = [operator_of(step) for step in graph.steps]
    for name in unwanted:
        if name not in names:
            known = ", ".join(sorted(set(names)))
            raise BadInput(f"no operator {name!r} to fall back: the network has {known}")
    found: dict[Hashable, bool] = {}
    placement = []
    for step, name in zip(graph.steps, names, strict=True):
        key = alike(step)
        if name not in unwanted and key not in found:
            found[key] = runs_on(graph, step, DevicePlan(gpu, {}))
        placement.append(CPU if name in unwanted or not found[key] else GPU)
    return within_memory_of(graph, placement, memory_bytes)


def present(graph: FusedGraph, unwanted: Collection[str]) -> list[str]:
    """Return those of the `unwanted` operators that the network has: a part of a network may have none of them."""
    names = {operator_of(step) for step in graph.steps}
    return [name for name in unwanted if name in names]


def within_memory_of(graph: FusedGraph, placement: Sequence[int], memory_bytes: int | None) -> list[int]:
    """Return the placement with the last of the GPU's steps moved to the CPU, as many as do not fit into `memory_bytes`
    of the GPU's memory (None: no limit)."""
    fitting = list(placement)
    while memory_bytes is not None and memory_on(graph, fitting, GPU) > memory_bytes:
        fitting[max(i for i, device in enumerate(fitting) if device == GPU)] = CPU
    return fitting


def operator_of(step: Step) -> str:
    """Return the name of what a step computes: a workload's operator ("conv2d", "nms"), or Relax's for other steps
    ("nn.softmax")."""
    if isinstance(step, TunedStep):
        return step.workload.op
    if not isinstance(step.value, Call):
        return "tuple"
    if step.value.op.name == "relax.call_tir" and isinstance(step.value.args[0], GlobalVar):
        return str(step.value.args[0].name_hint)
    return str(step.value.op.name).removeprefix("relax.")


def alike(step: Step) -> Hashable:
    """Return a key. Of two steps with equal keys, one can be lowered for a device if the other can."""
    if not isinstance(step, PlainStep):
        return step.workload
    if not isinstance(step.value, Call):
        return step.out
    return operator_of(step), str(step.value.attrs), tuple(str(leaf.ty) for leaf in operands(step.value))
