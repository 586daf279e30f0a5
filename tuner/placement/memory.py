"""Computes what a placement needs of a device's memory: weights, and the values that are there at the same time. Start
at `memory_on`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvm.ir import Var

from templates.template import PLAIN, Layout
from tuner.graph import FusedGraph
from tuner.graph.fusion.steps import AnchorStep, OperatorStep, Step, reads_of
from tuner.graph.ir.bindings import operands
from tuner.graph.ir.simplify import constant


def memory_on(graph: FusedGraph, placement: Sequence[int], device: int) -> int:
    """Return the bytes of the weights and constants of a device's steps, and of the largest set of values that it holds
    at once, copies of other devices' values included. Channels that layouts pad, and workspaces of kernels, come on
    top."""
    held = sum(weights_of(step) for step, d in zip(graph.steps, placement, strict=True) if d == device)
    return held + _peak(graph, placement, device)


def weights_of(step: Step) -> int:
    """Return the bytes of what a step reads that does not change from one inference to the next."""
    if isinstance(step, AnchorStep):
        return int(step.weight.nbytes + (0 if step.bias is None else step.bias.nbytes))
    leaves = step.inputs if isinstance(step, OperatorStep) else operands(step.value)
    arrays = (constant(leaf) for leaf in leaves)
    return sum(int(array.nbytes) for array in arrays if array is not None)


def bytes_of(ty: Any) -> int:
    """Return the bytes of a tensor, or of all tensors of a tuple."""
    return sum(sizes_of(ty, PLAIN))


def sizes_of(ty: Any, layout: Layout) -> list[int]:
    """Return the bytes of a tensor in a layout, or of each tensor of a tuple, which are plain."""
    if hasattr(ty, "fields"):
        return [size for field in ty.fields for size in sizes_of(field, PLAIN)]
    if not hasattr(ty, "shape"):
        return []
    dtype = str(ty.dtype)
    item = 1 if dtype == "bool" else int("".join(c for c in dtype if c.isdigit())) // 8
    return [math.prod(layout.shape([int(n) for n in ty.shape])) * item]


def _peak(graph: FusedGraph, placement: Sequence[int], device: int) -> int:
    first, last = _lifetimes(graph, placement, device)
    changes = [0] * (len(graph.steps) + 2)
    for var, at in first.items():
        changes[at] += bytes_of(var.ty)
        changes[last[var] + 1] -= bytes_of(var.ty)
    now = peak = 0
    for change in changes:
        now += change
        peak = max(peak, now)
    return peak


def _lifetimes(graph: FusedGraph, placement: Sequence[int], device: int) -> tuple[Mapping[Var, int], Mapping[Var, int]]:
    """Return the first and the last step, by their indices, at which a device holds each value."""
    first: dict[Var, int] = {}
    last: dict[Var, int] = {}
    results = {o for o in graph.outputs if isinstance(o, Var)}
    for i, (step, where) in enumerate(zip(graph.steps, placement, strict=True)):
        here = [*reads_of(step), step.out] if where == device else []
        for var in here:
            first.setdefault(var, i)
            last[var] = len(graph.steps) if var in results else i
        for var in reads_of(step):  # the value is copied from here to where it is read
            if var in first:
                last[var] = max(last[var], i)
    return first, last
