"""Compute several convolutions of one input by one kernel. Start at `merged_step`.

"Accelerate DNN Inference by Inter-Operator Parallelism" (submission to ICLR 2020), section 3, calls this "operation
merging". The merged kernel computes an ordinary convolution, which has the output channels of all members one behind
the other. Its window holds each member's window at its own position, filled up with zeros. So members may have any
windows and paddings that give outputs of one size. `spread` makes the kernel write each member's channels where the
member would.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.ir import Range, TensorLoad, Var
from tvm.s_tir import SBlock

from templates.integers import INTEGERS
from templates.rewrite import block_with
from templates.template import ScheduleError
from templates.workloads import Conv2d, conv_of
from tuner.graph.fusion.steps import AnchorStep, FusedGraph
from tuner.graph.lowering.concat import into_slice
from tuner.tasks import Task
from tuning_db.record import Workload

T = TypeVar("T")


def merge_kind(step: AnchorStep) -> Hashable:
    """Return the kind of a step. Convolutions of the same data and of equal kinds can be computed as one. A step whose
    kind is None can be merged with no other."""
    if step.workload.op != "conv2d" or step.workload.dtype == INTEGERS or step.extras:
        return None
    conv = conv_of(step.workload)
    if conv.groups != 1 or conv.dilation != (1, 1):
        return None
    size = conv.out_height, conv.out_width
    return step.workload.epilogue, step.workload.dtype, conv.data_shape, conv.strides, size


def merged_conv(convs: Sequence[Conv2d]) -> Conv2d:
    """Return the convolution that computes all output channels of convolutions of one kind."""
    spans = [_span(convs, axis) for axis in (0, 1)]
    (top, bottom), (left, right) = [_padding(convs, axis, *span) for axis, span in enumerate(spans)]
    return replace(
        convs[0],
        out_channels=sum(conv.out_channels for conv in convs),
        kernel=(sum(spans[0]), sum(spans[1])),
        padding=(top, left, bottom, right),
    )


def _span(convs: Sequence[Conv2d], axis: int) -> tuple[int, int]:
    """Return how many elements a member's window has at most before the element at an output's corner, and how many
    from that element on."""
    return (
        max(conv.padding[axis] for conv in convs),
        max(conv.kernel[axis] - conv.padding[axis] for conv in convs),
    )


def _padding(convs: Sequence[Conv2d], axis: int, before: int, behind: int) -> tuple[int, int]:
    """Return the merged padding before and behind.

    The padding behind is the members' largest one if it gives the same number of outputs. So if one member has the
    merged window, its padding is kept. Otherwise the padding is the smallest that gives this number.
    """
    size = (convs[0].height, convs[0].width)[axis]
    steps = ((convs[0].out_height, convs[0].out_width)[axis] - 1) * convs[0].strides[axis]
    usual = max(conv.padding[axis + 2] for conv in convs)
    if steps <= size + usual - behind < steps + convs[0].strides[axis]:
        return before, usual
    return before, max(0, steps + behind - size)


def merged_workload(steps: Sequence[AnchorStep]) -> Workload:
    """Return the workload of the convolution that merges steps of one kind."""
    whole = merged_conv([conv_of(step.workload) for step in steps])
    return whole.workload(steps[0].workload.epilogue, steps[0].workload.dtype)


def merged_step(steps: Sequence[AnchorStep]) -> AnchorStep:
    """Return the step that merges steps of one kind that read the same data. Its `out` is that of the first step, as no
    variable holds the whole result. Its weights are zero where a member's window does not reach."""
    convs = [conv_of(step.workload) for step in steps]
    whole = merged_conv(convs)
    weight = np.zeros(whole.weight_shape, steps[0].weight.dtype)
    first = 0
    for step, conv in zip(steps, convs, strict=True):
        top, left = (whole.padding[axis] - conv.padding[axis] for axis in (0, 1))
        channels = slice(first, first + conv.out_channels)
        weight[channels, :, top : top + conv.kernel[0], left : left + conv.kernel[1]] = step.weight
        first += conv.out_channels
    biases = [step.bias for step in steps if step.bias is not None]
    return replace(
        steps[0],
        workload=merged_workload(steps),
        node=merged_name(steps),
        weight=weight,
        bias=np.concatenate(biases) if biases else None,
    )


def mergeable(graph: FusedGraph) -> list[tuple[AnchorStep, ...]]:
    """Return the sets of steps of a network that may be merged, each as large as can be."""
    found: dict[tuple[Var, Hashable], list[AnchorStep]] = defaultdict(list)
    for step in graph.anchors:
        kind = merge_kind(step)
        if kind is not None and isinstance(step.data, Var):
            found[step.data, kind].append(step)
    return [tuple(steps) for steps in found.values() if len(steps) > 1]


def merges_to_tune(members: Sequence[T]) -> list[tuple[T, ...]]:
    """Return which merges of members that may be merged are worth tuning: each pair, and all of them. A search may use
    other merges with their templates' default configs."""
    pairs: list[tuple[T, ...]] = list(combinations(members, 2))
    return pairs if len(members) == 2 else [*pairs, tuple(members)]


def merged_tasks(graph: FusedGraph) -> list[Task]:
    """Return the distinct workloads of the merges that are worth tuning, as tasks. Each counts as often as it could be
    used."""
    names: dict[Workload, str] = {}
    counts: Counter[Workload] = Counter()
    for steps in mergeable(graph):
        for merge in merges_to_tune(steps):
            workload = merged_workload(merge)
            names.setdefault(workload, merged_name(merge))
            counts[workload] += 1
    return [Task(workload, counts[workload], name) for workload, name in names.items()]


def merged_name(steps: Iterable[AnchorStep]) -> str:
    """Return the name of the node that several become."""
    return " + ".join(step.node for step in steps)


@dataclass(frozen=True)
class Piece:
    """Says where some channel blocks of a merged kernel's result go: to `count` blocks, from `first` on, of the
    `result`-th tensor that the kernel writes."""

    result: int
    first: int
    count: int


def spread(func: tirx.PrimFunc, shapes: Sequence[Sequence[int]], pieces: Iterable[Piece]) -> tirx.PrimFunc:
    """Replace the last parameter of a function by several tensors of the given shapes, (N, C/v, H, W, v) or
    (N, C, H, W). `pieces` say, in order, where its channel blocks go.

    Raises ScheduleError if the function hands the memory of that parameter on to a library or an intrinsic.
    """
    joined = _joined(pieces)
    if len(joined) == 1:
        return into_slice(func, int(shapes[0][1]), joined[0].first)
    spreading = _Spreading(func.params[-1], shapes, joined)
    return tirx.PrimFunc(
        [*func.params[:-1], *spreading.results], spreading.of(func.body), func.ret_type, attrs=func.attrs
    )


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces, with those that lie one behind the other merged into one."""
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if last is not None and (last.result, last.first + last.count) == (piece.result, piece.first):
            found[-1] = replace(last, count=last.count + piece.count)
        else:
            found.append(piece)
    return found


class _Spreading:
    """Rewrites one function's accesses to its result `out`."""

    def __init__(self, out: Var, shapes: Sequence[Sequence[int]], pieces: Sequence[Piece]) -> None:
        self._out, self._pieces = out, pieces
        self.results = [
            tirx.decl_buffer(list(shape), str(out.ty.dtype), name=f"out_{i}") for i, shape in enumerate(shapes)
        ]
        self._begins = [sum(piece.count for piece in pieces[:i]) for i in range(len(pieces))]

    def of(self, body: Any) -> Any:
        rules = [(tirx.BufferStore, self._store), (TensorLoad, self._load), (SBlock, self._block)]
        body = tvm_ffi.structural_map(body, rules)
        left: list[Any] = []
        tvm_ffi.structural_walk(body, [(Var, lambda var: left.append(var) if var.same_as(self._out) else None)])
        if left:
            raise ScheduleError("its result cannot be spread over several tensors")
        return body

    def _store(self, node: Any) -> Any:
        if not node.buffer.same_as(self._out):
            return node
        stored = None
        for i in reversed(range(len(self._pieces))):
            here = tirx.BufferStore(self._result(i), node.value, self._moved(node.indices, i))
            stored = here if stored is None else tirx.IfThenElse(node.indices[1] < self._begins[i + 1], here, stored)
        return stored

    def _load(self, node: Any) -> Any:
        if not node.source.same_as(self._out):
            return node
        loaded = None
        for i in reversed(range(len(self._pieces))):
            here = tirx.BufferLoad(self._result(i), self._moved(node.indices, i))
            inside = node.indices[1] < self._begins[i + 1] if loaded is not None else None
            loaded = here if inside is None else tirx.if_then_else(inside, here, loaded)
        return loaded

    def _block(self, node: Any) -> Any:
        """Rewrite the regions that a block declares to read and write."""
        if any(match.source.source.same_as(self._out) for match in node.match_buffers):
            return node  # an intrinsic writes it, which knows only one tensor: then `of` raises
        return block_with(node, reads=self._regions(node.reads), writes=self._regions(node.writes))

    def _regions(self, regions: Iterable[Any]) -> list[Any]:
        found = []
        for region in regions:
            if region.source.same_as(self._out):
                found += [self._whole(result) for result in self.results]
            else:
                found.append(region)
        return found

    def _whole(self, result: Any) -> Any:
        extents = [Range.from_min_extent(0, int(extent)) for extent in result.ty.shape]
        return tirx.BufferRegion(result, extents)

    def _result(self, i: int) -> Any:
        return self.results[self._pieces[i].result]

    def _moved(self, indices: Sequence[Any], i: int) -> list[Any]:
        shift = self._pieces[i].first - self._begins[i]
        return [index + shift if axis == 1 and shift else index for axis, index in enumerate(indices)]
