"""Concatenate without copies: anchors write their results where the joined tensor has them. Start at `Joints`.

This concerns concatenations along the channels. If only the concatenation reads a part, and an anchor computes it in
blocked layout, then the anchor writes it straight into the joined tensor. The other parts are copied there. Each
function writes into the joined tensor in place and hands it on to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import relax, te, tirx
from tvm.ir import GlobalVar, Range, TensorLoad, TensorRegion, Var

from templates import default
from templates.lowering import finished
from templates.template import Layout
from tuner.graph.fusion.steps import FusedGraph, PlainStep, Step, reads_of
from tuner.graph.ir.bindings import shape_of
from tuner.graph.ir.hashes import WHOLE, kernel_hash
from tuner.graph.ir.simplify import is_call
from tuner.graph.lowering.emit import OPAQUE, Emitter, Forms


@dataclass(eq=False)
class Joint:
    """A concatenation that is written part by part; `held` is the joined tensor so far."""

    out: Var
    parts: tuple[Any, ...]
    layout: Layout
    shape: tuple[int, ...]  # blocked
    first_blocks: tuple[int, ...]  # of each part
    held: Any = None


@dataclass(frozen=True, eq=False)
class Slot:
    """Says where one part is written: `first_block` is its first channel block in the joined tensor."""

    joint: Joint
    first_block: int


class Joints:
    """The concatenations among some steps of a graph that need no copies.

    `blocks` has the layout block of the result of every anchor among the steps (0: plain). `wanted` has the blocks that
    some concatenations are to have (see `lower.lower_steps`).
    """

    def __init__(
        self, graph: FusedGraph, steps: Sequence[Step], blocks: Mapping[Var, int], wanted: Mapping[Var, int]
    ) -> None:
        self._by_out: dict[Var, Joint] = {}
        self._slots: dict[Var, Slot] = {}
        uses = _uses(graph)
        for step in steps:
            if isinstance(step, PlainStep) and is_call(step.value, "concat"):
                self._add(step.value, step.out, uses, blocks=blocks, wanted=wanted.get(step.out))

    def _add(self, call: Any, out: Var, uses: Counter[Var], *, blocks: Mapping[Var, int], wanted: int | None) -> None:
        parts = tuple(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else ()
        shapes = [shape_of(part) for part in parts]
        shape = shape_of(out)
        written = [p for p in parts if isinstance(p, Var) and uses[p] == 1 and blocks.get(p, 0)]
        if not written or shape is None or len(shape) != 4 or int(call.attrs.axis) % 4 != 1:
            return
        block = blocks[written[0]]
        if wanted not in (None, block):
            return
        channels = [s[1] for s in shapes if s is not None]
        if len(channels) != len(parts) or any(c % block for c in channels[:-1]):
            return
        firsts = tuple(sum(channels[:i]) // block for i in range(len(parts)))
        joint = Joint(out, parts, Layout(block), Layout(block).shape(shape), firsts)
        self._by_out[out] = joint
        for part, first in zip(parts, firsts, strict=True):
            if any(part is w or part.same_as(w) for w in written) and blocks[part] == block:
                self._slots[part] = Slot(joint, first)

    def slot(self, var: Var) -> Slot | None:
        """Return where an anchor is to write its result, or None if it has a tensor of its own."""
        return self._slots.get(var)

    def emit(self, emitter: Emitter, forms: Forms, out: Var) -> bool:
        """Copy the parts that are not in place yet, if `out` is a concatenation of this kind. Return whether it is."""
        joint = self._by_out.get(out)
        if joint is None:
            return False
        for part, first in zip(joint.parts, joint.first_blocks, strict=True):
            if not isinstance(part, Var) or part not in self._slots:
                shape = joint.layout.shape(shape_of(part) or ())
                dtype = str(joint.out.ty.dtype)
                copy = default.schedule(copied(shape, dtype), emitter.target)
                source = [forms.get(part, joint.layout)]
                write(emitter, Slot(joint, first), ("copy", shape, dtype), func=copy, arguments=source, name="copy")
        forms.put(out, joint.held, joint.layout)
        return True


def _uses(graph: FusedGraph) -> Counter[Var]:
    uses: Counter[Var] = Counter()
    for step in graph.steps:
        uses.update(reads_of(step))
    uses.update(o for o in graph.outputs if isinstance(o, Var))
    return uses


def write(
    emitter: Emitter, slot: Slot, key: Hashable, *, func: tirx.PrimFunc, arguments: Sequence[Any], name: str
) -> GlobalVar:
    """Emit a call of a scheduled function that writes its result into the slot. Return the function that is called."""
    joint = slot.joint
    blocks = joint.shape[1]

    def sliced() -> tirx.PrimFunc:
        alone = kernel_hash(finished(func, emitter.target))  # kernels are compared as they are compiled
        return into_slice(func, blocks, slot.first_block).with_attr(WHOLE, alone)

    function = emitter.function((key, blocks, slot.first_block), sliced, name, OPAQUE)
    out = relax.TensorType(joint.shape, joint.out.ty.dtype)
    if joint.held is None:
        call = relax.call_tir(function, list(arguments), out_ty=out)
    else:
        call = relax.op.base.call_tir_inplace(
            function, [*arguments, joint.held], inplace_indices=[len(arguments)], out_ty=out
        )
    joint.held = emitter.builder.emit(call)
    return function


def into_slice(func: tirx.PrimFunc, blocks: int, first: int) -> tirx.PrimFunc:
    """Return the function with its last parameter, (N, C/v, ...), widened to `blocks` blocks. It writes the blocks from
    `first` on."""
    out = func.params[-1]
    shape = [int(s) for s in out.ty.shape]
    joined = tirx.decl_buffer([shape[0], blocks, *shape[2:]], str(out.ty.dtype), name="joined")

    def moved(indices: Sequence[Any]) -> list[Any]:
        return [index + first if axis == 1 else index for axis, index in enumerate(indices)]

    def store(node: Any) -> Any:
        return tirx.BufferStore(joined, node.value, moved(node.indices)) if node.buffer.same_as(out) else node

    def load(node: Any) -> Any:
        return tirx.BufferLoad(joined, moved(node.indices)) if node.source.same_as(out) else node

    def region(node: Any) -> Any:
        if not node.source.same_as(out):
            return node
        starts = moved([r.min for r in node.region])
        ranges = [Range.from_min_extent(s, r.extent) for s, r in zip(starts, node.region, strict=True)]
        return tirx.BufferRegion(joined, ranges)

    rules = [(tirx.BufferStore, store), (TensorLoad, load), (TensorRegion, region)]
    body = tvm_ffi.structural_map(func.body, rules)
    return tirx.PrimFunc([*func.params[:-1], joined], body, func.ret_type, attrs=func.attrs)


def copied(shape: Sequence[int], dtype: str) -> tirx.PrimFunc:
    """Return a function that copies data of the given shape."""
    data = te.placeholder(shape, name="data", dtype=dtype)
    return te.create_prim_func([data, te.compute(shape, lambda *i: data(*i), name="out")])
