"""Rewrites of a scheduled function that schedule primitives cannot express. Start at `mark` and `wrap_marked_loop`.

Templates use them to skip rows, to prefetch, and to restore predicates that scheduling loses (`guard`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule

from templates.template import ScheduleError

# Fetch(buffer, indices) makes a statement that fetches the cache line of buffer[indices]. The address may lie outside.
Fetch = Callable[[Any, Sequence[Any]], Any]

CACHE_LINE_BYTES = 64
CACHE_LINE_FLOATS = CACHE_LINE_BYTES // 4
_MARK = "edgetune.loop"
_FIELDS = (
    "iter_vars",
    "reads",
    "writes",
    "name_hint",
    "body",
    "init",
    "alloc_buffers",
    "match_buffers",
    "annotations",
    "span",
)
LOCALITY = 2  # keep in the second-level cache: the block is used soon, but not at once


def block_with(block: SBlock, **changes: Any) -> SBlock:
    """Return a copy of a block with some of its fields (`body`, `reads`, `alloc_buffers` ...) changed."""
    return SBlock(**{name: getattr(block, name) for name in _FIELDS} | changes)


def with_values(expression: Any, values: Mapping[Any, Any]) -> Any:
    """Return an expression with the values of variables in their places."""

    def value(var: Any) -> Any:
        return next((new for old, new in values.items() if var.same_as(old)), var)

    return tvm_ffi.structural_map(expression, [(tvm.ir.Var, value)])


def nodes_of(root: Any, kind: type[Any]) -> list[Any]:
    """Return all nodes of a kind in an expression or statement."""
    found: list[Any] = []
    tvm_ffi.structural_walk(root, [(kind, found.append)])
    return found


def depends(expression: Any, var: Any) -> bool:
    """Tell whether an expression contains a variable."""
    return any(node.same_as(var) for node in nodes_of(expression, tvm.ir.Var))


def block_indices(root: Any, block: str) -> list[Any] | None:
    """Return the iteration values of the block called `block`, or None if it is not below `root`.

    The variables of all loops inside `root` are replaced by 0, which is their first iteration.
    """
    blocks = [r for r in nodes_of(root, SBlockRealize) if r.block.name_hint == block]
    if not blocks:
        return None
    first = {loop.loop_var: tirx.const(0, "int32") for loop in nodes_of(root, tirx.For)}
    return [with_values(value, first) for value in blocks[0].iter_values]


def mark(sch: Schedule, loop: Any) -> None:
    """Mark a loop of a schedule for `wrap_marked_loop`. A mark stays on a loop whose name changes as blocks move."""
    sch.annotate(loop, _MARK, 1)


def peel_tail(sch: Schedule, loop: Any) -> None:
    """Let TVM peel a narrower last iteration off a loop over tiles, so that the others need no bounds check."""
    sch.annotate(loop, "pragma_loop_partition_hint", 1)


def wrap_marked_loop(func: tirx.PrimFunc, block: str, wrap: Callable[[Any, Sequence[Any]], Any]) -> tirx.PrimFunc:
    """Replace the body of the marked loop around `block` by wrap(loop, indices), with the indices of `block_indices`.

    Raises ScheduleError if there is no such loop.
    """
    done: list[Any] = []

    def visit(node: Any) -> Any:
        if _MARK not in node.annotations or done:
            return node
        indices = block_indices(node.body, block)
        if indices is None:
            return node
        done.append(node)
        body = wrap(node, indices)
        return tirx.For(node.loop_var, node.min, node.extent, node.kind, body, node.thread_binding, node.annotations)

    body = tvm_ffi.structural_map(func.body, [(tirx.For, visit)])
    if not done:
        raise ScheduleError(f"no marked loop around block {block!r}")
    return func.with_body(body)


def guard(func: tirx.PrimFunc, block: str, extents: Mapping[int, int]) -> tirx.PrimFunc:
    """Run a block only where its i-th iteration value is below extents[i], for every i in `extents`.

    This restores predicates: where several axes have a tail, the schedule primitives that move and inline a block keep
    the predicate of one alone.
    """

    def visit(node: Any) -> Any:
        if node.block.name_hint != block:
            return node
        inside = tirx.all(node.predicate, *(node.iter_values[i] < extent for i, extent in extents.items()))
        return SBlockRealize(node.iter_values, inside, node.block)

    return func.with_body(tvm_ffi.structural_map(func.body, [(SBlockRealize, visit)]))


def prefetch(buffer: Any, indices: Sequence[Any]) -> Any:
    """Make a statement that fetches the cache line of buffer[indices] in llvm code.

    The address may lie outside the buffer, as nothing is read.
    """
    address = tirx.address_of(tirx.BufferLoad(buffer, list(indices)))
    arguments = [tirx.const(value, "int32") for value in (0, LOCALITY, 1)]  # read, locality, data
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch.p0", address, *arguments))


def shared_out(lines: int, sweeps: int, sweep: Any) -> list[Any]:
    """Return the indices of the cache lines that sweep number `sweep` fetches.

    Each of `sweeps` sweeps fetches an equal share of `lines` lines, rounded up.
    """
    share = -(-lines // sweeps)
    return [sweep * share + i for i in range(share)]
