"""Steps that are computed in parts: a step's output channels are shared out over devices. Start at `split_steps`.

Paper 002, section 4, splits an operator along a parameter dimension: every part reads the data (a grouped one its own
groups of it) and has its own rows of the weight. A part is a step with an ordinary workload, tuned and looked up like
any other; behind the parts is a concatenation, and before them slices of what they do not read whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from tvm import relax
from tvm.ir import Var

from templates.workloads import Anchor, Conv2d, anchor_of
from tuner.errors import BadInput
from tuner.graph.fuse import AnchorStep, FusedGraph, PlainStep, Step
from tuner.graph.simplify import constant


@dataclass(frozen=True)
class Share:
    """Output channels from `first` up to, and without, `last`, and the index of the device that computes them."""

    first: int
    last: int
    device: int

    @property
    def channels(self) -> int:
        return self.last - self.first


class Split(NamedTuple):
    """A graph with steps in parts, the index of the device of each of its steps, and, by a part's result, the step that
    it is a part of."""

    graph: FusedGraph
    placement: tuple[int, ...]
    whole: Mapping[Var, AnchorStep]


def split_steps(
    graph: FusedGraph, placement: Sequence[int], shares: Mapping[Var, Sequence[Share]], host: int | None = None
) -> Split:
    """The graph with the anchors whose results `shares` has in parts. Others stay where `placement` has them; of an
    anchor in parts it has the device of the concatenation. Neighbouring shares of one device are one part.

    The parts of `host`, the CPU's index, come last: a GPU's are launched and not waited for, so both compute at the
    same time. Slices are made where the sliced value is.

    Raises BadInput, naming the node, for a step that cannot be split as its shares say.
    """
    splitting = _Splitting(graph, placement, host)
    for step, device in zip(graph.steps, placement, strict=True):
        if step.out not in shares:
            splitting.add(step, device)
        elif not isinstance(step, AnchorStep):
            raise BadInput(f"node {step.node!r} is not a convolution or a dense layer: only these can be split")
        else:
            splitting.divide(step, joined(shares[step.out]), device)
    return Split(replace(graph, steps=tuple(splitting.steps)), tuple(splitting.placement), splitting.whole)


def joined(shares: Sequence[Share]) -> list[Share]:
    """Neighbouring shares of one device as one."""
    found: list[Share] = []
    for share in shares:
        if found and found[-1].device == share.device and found[-1].last == share.first:
            found[-1] = replace(found[-1], last=share.last)
        else:
            found.append(share)
    return found


def unit_of(step: AnchorStep) -> int:
    """How many neighbouring output channels only go together: those of a group."""
    anchor = anchor_of(step.workload)
    return anchor.out_channels // anchor.groups if isinstance(anchor, Conv2d) and anchor.groups > 1 else 1


def channels_of(step: AnchorStep) -> int:
    """Of its output."""
    return anchor_of(step.workload).out_shape[1]


def _check(step: AnchorStep, shares: Sequence[Share]) -> None:
    where, channels, unit = f"node {step.node!r}", channels_of(step), unit_of(step)
    borders = [0, *(share.last for share in shares)]
    if borders[-1] != channels or any(s.first != border for s, border in zip(shares, borders, strict=False)):
        raise BadInput(f"{where}: its parts must have each of its {channels} output channels once, in order")
    if any(one >= other for one, other in pairwise(borders)):
        raise BadInput(f"{where}: a part without output channels: split it into fewer parts")
    cut = next((border for border in borders if border % unit), None)
    if cut is not None:
        raise BadInput(f"{where}: channel {cut} is inside a group of {unit}: parts begin and end between groups")


class _Splitting:
    """The new steps and their placement, under construction."""

    def __init__(self, graph: FusedGraph, placement: Sequence[int], host: int | None) -> None:
        self.steps: list[Step] = []
        self.placement: list[int] = []
        self.whole: dict[Var, AnchorStep] = {}
        self._home = {step.out: device for step, device in zip(graph.steps, placement, strict=True)}
        self._host = host

    def add(self, step: Step, device: int) -> None:
        self.steps.append(step)
        self.placement.append(device)

    def divide(self, step: AnchorStep, shares: Sequence[Share], device: int) -> None:
        _check(step, shares)
        if len(shares) == 1:
            self._home[step.out] = shares[0].device
            self.add(step, shares[0].device)
            return
        parts = [self._part(step, share) for share in shares]
        for at in sorted(range(len(parts)), key=lambda i: shares[i].device == self._host):
            self.add(parts[at], shares[at].device)
            self.whole[parts[at].out] = step
        axis = len(step.out.ty.shape) - 1 if step.workload.op == "dense" else 1
        value = relax.op.concat([part.out for part in parts], axis)
        self.add(PlainStep(f"{step.node}[:]", value, step.out), device)

    def _part(self, step: AnchorStep, share: Share) -> AnchorStep:
        """The step for its share of the channels; the slices that it reads come before all parts."""
        anchor, first, last = anchor_of(step.workload), share.first, share.last
        part, read = _anchor_part(anchor, first, last)
        data = step.data if read is None else self._slice(step, step.data, 1, *read, share.device)
        axis = 1 if isinstance(anchor, Conv2d) else len(step.out.ty.shape) - 1
        return replace(
            step,
            workload=part.workload(step.workload.epilogue, step.workload.dtype),
            node=f"{step.node}[{first}:{last}]",
            data=data,
            extras=tuple(self._slice(step, extra, axis, first, last, share.device) for extra in step.extras),
            weight=np.ascontiguousarray(step.weight[first:last]),
            bias=None if step.bias is None else np.ascontiguousarray(step.bias[first:last]),
            out=_variable(step.out, axis, first, last),
        )

    def _slice(self, step: AnchorStep, expr: Any, axis: int, first: int, last: int, device: int) -> Any:
        array = constant(expr)
        if array is not None:
            return relax.const(np.ascontiguousarray(array.take(range(first, last), axis)))
        out = _variable(expr, axis, first, last)
        value = relax.op.strided_slice(expr, [axis], [first], [last])
        self.add(PlainStep(f"{step.node}[{first}:{last}] reads {expr.name}", value, out), self._home.get(expr, device))
        return out


def _anchor_part(anchor: Anchor, first: int, last: int) -> tuple[Anchor, tuple[int, int] | None]:
    """The anchor of some output channels, and which input channels it reads; None: all of them."""
    if not isinstance(anchor, Conv2d):
        return replace(anchor, out_features=last - first), None
    if anchor.groups == 1:
        return replace(anchor, out_channels=last - first), None
    unit, width = anchor.out_channels // anchor.groups, anchor.in_channels // anchor.groups
    groups, start = (last - first) // unit, first // unit * width
    part = replace(anchor, in_channels=groups * width, out_channels=last - first, groups=groups)
    return part, (start, start + groups * width)


def _variable(var: Var, axis: int, first: int, last: int) -> Var:
    shape = [int(s) for s in var.ty.shape]
    shape[axis] = last - first
    return relax.Var(f"{var.name}_{first}_{last}", relax.TensorType(shape, var.ty.dtype))
