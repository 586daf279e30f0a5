"""Steps that are computed in parts: a step's output channels or rows are shared out over devices. Start at
`split_steps`.

Paper 002, section 4, splits an operator along a parameter dimension or an attribute. A part of the channels reads all
data (a grouped one its own groups of it) and has its own rows of the weight; a part of the rows has all of the weight
and reads the input rows that its kernel reaches, those at a border with other parts (the halo) as these do. A part is a
step with an ordinary workload, tuned and looked up like any other; behind the parts is a concatenation, and before them
slices of what they do not read whole. What was itself made in parts of its rows is read from these: then no more than
the halo is copied between devices, and of a value that nobody reads whole there is no concatenation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from tvm import relax
from tvm.ir import Var

from templates.workloads import Anchor, Conv2d, anchor_of, conv_of
from tuner.errors import BadInput
from tuner.graph.fusion.fuse import AnchorStep, FusedGraph, PlainStep, Step, alive_steps
from tuner.graph.ir.bindings import shape_of
from tuner.graph.ir.simplify import constant

ROWS = 2  # the axis of an image


@dataclass(frozen=True)
class Share:
    """Output channels (`rows`: output rows) from `first` up to, and without, `last`, and the index of the device that
    computes them."""

    first: int
    last: int
    device: int
    rows: bool = False

    @property
    def size(self) -> int:
        return self.last - self.first

    @property
    def name(self) -> str:
        return f"[{'rows ' if self.rows else ''}{self.first}:{self.last}]"


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
    same time. Slices are made where the sliced value is, a network's input being the host's.

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
    steps = alive_steps(splitting.steps, graph.outputs)
    return Split(replace(graph, steps=steps), tuple(splitting.placement[step] for step in steps), splitting.whole)


def joined(shares: Sequence[Share]) -> list[Share]:
    """Neighbouring shares of one device as one."""
    found: list[Share] = []
    for share in shares:
        if found and replace(found[-1], first=share.first, last=share.last) == share and found[-1].last == share.first:
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


def rows_of(step: AnchorStep) -> int:
    """Of its output, as far as they can be shared out: 1 for a dense layer, and for a convolution of whose rows some
    reach nothing but padding."""
    conv = anchor_of(step.workload)
    if not isinstance(conv, Conv2d):
        return 1
    (_, end), (start, _) = (_reached(conv, row, row + 1) for row in (0, conv.out_height - 1))
    return conv.out_height if end > 0 and start < conv.height else 1


def _reached(conv: Conv2d, first: int, last: int) -> tuple[int, int]:
    """The input rows that output rows reach, from and up to: those of the padding are before 0 and behind the last."""
    start = first * conv.strides[0] - conv.padding[0]
    return start, start + (last - first - 1) * conv.strides[0] + reach_of(conv)


def reach_of(conv: Conv2d) -> int:
    """How many input rows an output row spans."""
    return conv.dilation[0] * (conv.kernel[0] - 1) + 1


def _check(step: AnchorStep, shares: Sequence[Share]) -> None:
    where, rows = f"node {step.node!r}", shares[0].rows
    if any(share.rows != rows for share in shares):
        raise BadInput(f"{where}: split it along channels or along rows, not both")
    if rows and rows_of(step) == 1:
        raise BadInput(f"{where}: cannot be split along rows: it is no convolution of several that each read data")
    name, size, unit = ("rows", rows_of(step), 1) if rows else ("channels", channels_of(step), unit_of(step))
    borders = [0, *(share.last for share in shares)]
    if borders[-1] != size or any(s.first != border for s, border in zip(shares, borders, strict=False)):
        raise BadInput(f"{where}: its parts must have each of its {size} output {name} once, in order")
    if any(one >= other for one, other in pairwise(borders)):
        raise BadInput(f"{where}: a part without output {name}: split it into fewer parts")
    cut = next((border for border in borders if border % unit), None)
    if cut is not None:
        raise BadInput(f"{where}: channel {cut} is inside a group of {unit}: parts begin and end between groups")


class _Splitting:
    """The new steps and their placement, under construction."""

    def __init__(self, graph: FusedGraph, placement: Sequence[int], host: int | None) -> None:
        self.steps: list[Step] = []
        self.placement: dict[Step, int] = {}
        self.whole: dict[Var, AnchorStep] = {}
        self._home = {step.out: device for step, device in zip(graph.steps, placement, strict=True)}
        self._host = host
        self._in_rows: dict[Var, list[tuple[Share, Var]]] = {}  # the parts of values that were made so
        self._cut: dict[tuple[Var, int, int, int], Var] = {}  # slices that were made
        self._put: dict[tuple[Var, int, int, int], Var] = {}  # rows that were put together, by device

    def add(self, step: Step, device: int) -> None:
        self.steps.append(step)
        self.placement[step] = device

    def divide(self, step: AnchorStep, shares: Sequence[Share], device: int) -> None:
        _check(step, shares)
        if len(shares) == 1:
            self._home[step.out] = shares[0].device
            self.add(step, shares[0].device)
            return
        rows = shares[0].rows
        parts = [self._row_part(step, share) if rows else ([], self._channel_part(step, share)) for share in shares]
        for at in sorted(range(len(parts)), key=lambda i: shares[i].device == self._host):
            joins, part = parts[at]
            for join in joins:
                self.add(join, shares[at].device)
            self.add(part, shares[at].device)
            self._home[part.out] = shares[at].device
            self.whole[part.out] = step
        if rows:
            self._in_rows[step.out] = [(share, part.out) for share, (_, part) in zip(shares, parts, strict=True)]
        axis = ROWS if rows else _channel_axis(step)
        value = relax.op.concat([part.out for _, part in parts], axis)
        self.add(PlainStep(f"{step.node}[:]", value, step.out), device)

    def _channel_part(self, step: AnchorStep, share: Share) -> AnchorStep:
        """The step for its share of the channels; the slices that it reads come before all parts."""
        first, last, axis = share.first, share.last, _channel_axis(step)
        part, read = _channels_of_anchor(anchor_of(step.workload), first, last)
        data = step.data if read is None else self._slice(step, share, step.data, 1, *read)
        return replace(
            step,
            workload=part.workload(step.workload.epilogue, step.workload.dtype),
            node=f"{step.node}{share.name}",
            data=data,
            extras=tuple(self._slice(step, share, extra, axis, first, last) for extra in step.extras),
            weight=np.ascontiguousarray(step.weight[first:last]),
            bias=None if step.bias is None else np.ascontiguousarray(step.bias[first:last]),
            out=_variable(step.out, axis, first, last),
        )

    def _row_part(self, step: AnchorStep, share: Share) -> tuple[list[PlainStep], AnchorStep]:
        """The step for its share of the rows, and the concatenations right before it; slices come before all parts."""
        part, read = _rows_of_conv(conv_of(step.workload), share.first, share.last)
        joins: list[PlainStep] = []
        made = replace(
            step,
            workload=part.workload(step.workload.epilogue, step.workload.dtype),
            node=f"{step.node}{share.name}",
            data=self._rows(step, share, step.data, *read, joins),
            extras=tuple(self._rows(step, share, e, share.first, share.last, joins) for e in step.extras),
            out=_variable(step.out, ROWS, share.first, share.last),
        )
        return joins, made

    def _rows(self, step: AnchorStep, share: Share, expr: Any, first: int, last: int, joins: list[PlainStep]) -> Any:
        """Some rows of a value. Of one that was made in parts, what these have is put together where it is read: the
        concatenation is added to `joins`."""
        shape = shape_of(expr)
        assert shape is not None
        if (first, last) == (0, shape[ROWS]):
            return expr
        parts = self._in_rows.get(expr) if isinstance(expr, Var) else None
        if parts is None:
            return self._slice(step, share, expr, ROWS, first, last)
        key = expr, first, last, share.device
        if key not in self._put:
            pieces = [
                self._slice(step, share, var, ROWS, max(first, p.first) - p.first, min(last, p.last) - p.first)
                for p, var in parts
                if p.first < last and first < p.last
            ]
            if len(pieces) == 1:
                return pieces[0]
            self._put[key] = out = _variable(expr, ROWS, first, last)
            joins.append(PlainStep(f"{step.node}{share.name} joins {expr.name}", relax.op.concat(pieces, ROWS), out))
        return self._put[key]

    def _slice(self, step: AnchorStep, share: Share, expr: Any, axis: int, first: int, last: int) -> Any:
        """Of a constant a constant; of a value, where it is, each slice once; all of it as it is."""
        array = constant(expr)
        if array is not None:
            return relax.const(np.ascontiguousarray(array.take(range(first, last), axis)))
        if (first, last) == (0, int(expr.ty.shape[axis])):
            return expr
        key = expr, axis, first, last
        if key not in self._cut:
            self._cut[key] = out = _variable(expr, axis, first, last)
            value = relax.op.strided_slice(expr, [axis], [first], [last])
            beside = share.device if self._host is None else self._host
            self.add(PlainStep(f"{step.node}{share.name} reads {expr.name}", value, out), self._home.get(expr, beside))
        return self._cut[key]


def _channel_axis(step: AnchorStep) -> int:
    return 1 if isinstance(anchor_of(step.workload), Conv2d) else len(step.out.ty.shape) - 1


def _channels_of_anchor(anchor: Anchor, first: int, last: int) -> tuple[Anchor, tuple[int, int] | None]:
    """The anchor of some output channels, and which input channels it reads; None: all of them."""
    if not isinstance(anchor, Conv2d):
        return replace(anchor, out_features=last - first), None
    if anchor.groups == 1:
        return replace(anchor, out_channels=last - first), None
    unit, width = anchor.out_channels // anchor.groups, anchor.in_channels // anchor.groups
    groups, start = (last - first) // unit, first // unit * width
    part = replace(anchor, in_channels=groups * width, out_channels=last - first, groups=groups)
    return part, (start, start + groups * width)


def _rows_of_conv(conv: Conv2d, first: int, last: int) -> tuple[Conv2d, tuple[int, int]]:
    """The convolution of some output rows, and which input rows it reads: its padding is what it has beyond these."""
    start, end = _reached(conv, first, last)
    low, high = max(start, 0), min(end, conv.height)
    padding = low - start, conv.padding[1], end - high, conv.padding[3]
    return replace(conv, height=high - low, padding=padding), (low, high)


def _variable(var: Var, axis: int, first: int, last: int) -> Var:
    shape = [int(s) for s in var.ty.shape]
    shape[axis] = last - first
    return relax.Var(f"{var.name}_{first}_{last}", relax.TensorType(shape, var.ty.dtype))
