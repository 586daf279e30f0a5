"""Compute steps in parts: a step's output channels or rows are shared out over devices. Start at `split_steps`.

Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks", section 4, split an operator along
a parameter dimension (here: channels) or an attribute dimension (here: rows). A part of the channels has its own rows
of the weight and reads all data, or its own groups of the data if the convolution is grouped. A part of the rows has
the whole weight and reads the input rows that its kernel reaches. Neighbouring parts both read the rows at their border
(the halo).

A part is a step with an ordinary workload, which is tuned and looked up like any other. A concatenation follows the
parts. Slices before them cut out what they do not read whole. A value that was itself made in parts of its rows is read
from these parts. Then only the halo is copied between devices, and a value that no step reads whole is never joined.
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
from tuner.graph.fusion.steps import AnchorStep, FusedGraph, PlainStep, Step, alive_steps
from tuner.graph.ir.bindings import shape_of
from tuner.graph.ir.simplify import as_constant, constant

ROWS = 2  # the axis of an image


@dataclass(frozen=True)
class Share:
    """The output channels that one device computes (output rows if `rows` is set), from `first` up to but not including
    `last`. `device` is the index of the device."""

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
    """A graph some of whose steps are split into parts. `placement` has the index of the device of each of its steps.
    `whole` maps the result of a part to the step that it is a part of."""

    graph: FusedGraph
    placement: tuple[int, ...]
    whole: Mapping[Var, AnchorStep]


def split_steps(
    graph: FusedGraph, placement: Sequence[int], shares: Mapping[Var, Sequence[Share]], host: int | None = None
) -> Split:
    """Split the anchors whose results are keys of `shares` into parts.

    Other steps stay on the device that `placement` gives. For a split anchor, `placement` gives the device of the
    concatenation. Neighbouring shares of one device become one part.

    The parts of `host`, which is the CPU's index, come last. The parts of a GPU are launched without waiting for them,
    so both compute at the same time. A slice is made on the device that holds the sliced value; a network's input is
    held by the host.

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
    """Return the shares with neighbouring shares of one device merged into one."""
    found: list[Share] = []
    for share in shares:
        if found and replace(found[-1], first=share.first, last=share.last) == share and found[-1].last == share.first:
            found[-1] = replace(found[-1], last=share.last)
        else:
            found.append(share)
    return found


def unit_of(step: AnchorStep) -> int:
    """Return how many neighbouring output channels have to stay together, which are those of a group."""
    anchor = anchor_of(step.workload)
    return anchor.out_channels // anchor.groups if isinstance(anchor, Conv2d) and anchor.groups > 1 else 1


def channels_of(step: AnchorStep) -> int:
    """Return the number of channels of a step's output."""
    return anchor_of(step.workload).out_shape[1]


def rows_of(step: AnchorStep) -> int:
    """Return the number of output rows that can be shared out. It is 1 for a dense layer, and for a convolution some of
    whose output rows reach nothing but padding."""
    conv = anchor_of(step.workload)
    if not isinstance(conv, Conv2d):
        return 1
    (_, end), (start, _) = (_reached(conv, row, row + 1) for row in (0, conv.out_height - 1))
    return conv.out_height if end > 0 and start < conv.height else 1


def _reached(conv: Conv2d, first: int, last: int) -> tuple[int, int]:
    """Return the first input row that output rows reach, and the row behind the last. Rows of the padding are before 0
    and behind the last input row."""
    start = first * conv.strides[0] - conv.padding[0]
    return start, start + (last - first - 1) * conv.strides[0] + reach_of(conv)


def reach_of(conv: Conv2d) -> int:
    """Return how many input rows an output row spans."""
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
    """Builds the new steps and their placement."""

    def __init__(self, graph: FusedGraph, placement: Sequence[int], host: int | None) -> None:
        self.steps: list[Step] = []
        self.placement: dict[Step, int] = {}
        self.whole: dict[Var, AnchorStep] = {}
        self._home = {step.out: device for step, device in zip(graph.steps, placement, strict=True)}
        self._host = host
        self._in_rows: dict[Var, list[tuple[Share, Var]]] = {}  # the parts of values that were made in rows
        self._cut: dict[tuple[Var, int, int, int], Var] = {}  # slices that were emitted
        self._put: dict[tuple[Var, int, int, int], Var] = {}  # rows that were joined, by device

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
        """Return the step that computes a share of the channels. The slices that it reads come before all parts."""
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
        """Return the concatenations that come right before a part, and the step that computes its share of the rows.
        The slices that it reads come before all parts."""
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
        """Return the rows of `expr` from `first` up to `last`. If the value was made in parts, their rows are joined on
        the device that reads them, and the concatenation is appended to `joins`."""
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
        """Return the slice of `expr` along `axis` from `first` up to `last`. A constant is sliced at build time. A
        variable's slice is emitted once, on the device that holds the variable. A slice of its full range is the
        variable itself."""
        array = constant(expr)
        if array is not None:
            return as_constant(np.ascontiguousarray(array.take(range(first, last), axis)))
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
    """Return the anchor that computes some output channels, and the range of input channels that it reads (None if it
    reads all)."""
    if not isinstance(anchor, Conv2d):
        return replace(anchor, out_features=last - first), None
    if anchor.groups == 1:
        return replace(anchor, out_channels=last - first), None
    unit, width = anchor.out_channels // anchor.groups, anchor.in_channels // anchor.groups
    groups, start = (last - first) // unit, first // unit * width
    part = replace(anchor, in_channels=groups * width, out_channels=last - first, groups=groups)
    return part, (start, start + groups * width)


def _rows_of_conv(conv: Conv2d, first: int, last: int) -> tuple[Conv2d, tuple[int, int]]:
    """Return the convolution that computes some output rows, and the range of input rows that it reads. Rows that it
    reaches beyond the input become its padding."""
    start, end = _reached(conv, first, last)
    low, high = max(start, 0), min(end, conv.height)
    padding = low - start, conv.padding[1], end - high, conv.padding[3]
    return replace(conv, height=high - low, padding=padding), (low, high)


def _variable(var: Var, axis: int, first: int, last: int) -> Var:
    shape = [int(s) for s in var.ty.shape]
    shape[axis] = last - first
    return relax.Var(f"{var.name}_{first}_{last}", relax.TensorType(shape, var.ty.dtype))
