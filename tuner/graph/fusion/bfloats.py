"""Multiply a network's numbers in bfloat16. Start at `with_bfloats`.

Convolutions and dense layers that have a template for it get bfloat16 workloads (`templates.bfloats`). These read and
write float32, so that nothing else changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm.target import Target

from templates.bfloats import BFLOAT16
from templates.template import default_config
from tuner.graph.fusion.steps import AnchorStep, FusedGraph, Step


def with_bfloats(graph: FusedGraph, targets: Sequence[Target]) -> FusedGraph:
    """Return the same network with products in bfloat16 where all targets have a template for them. `targets` are those
    of all devices that it may be computed on."""

    def step_of(step: Step) -> Step:
        if not isinstance(step, AnchorStep) or step.workload.dtype != "float32":
            return step
        workload = replace(step.workload, dtype=BFLOAT16)
        has_templates = all(default_config(workload, target) is not None for target in targets)
        return replace(step, workload=workload) if targets and has_templates else step

    return replace(graph, steps=tuple(map(step_of, graph.steps)), dtype=BFLOAT16)
