"""This module makes kernels of the hand-written loops that no schedule has bound to a GPU's threads.

Start at `bind_rest`. A loop that is marked as parallel is distributed over work-items; all other code runs in one
work-item. Statements that launch kernels themselves, and host loops around such launches, stay as they are.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlockRealize

from templates.rewrite import block_with, nodes_of

_CALLS_OF_THE_HOST = {"tirx.tvm_call_packed", "tirx.tvm_call_cpacked", "tirx.tvm_call_packed_lowered"}


def host_accesses(root: Any) -> list[Any]:
    """Return all loads, stores and calls of packed functions in a statement that no thread binding encloses."""
    found: list[Any] = []

    def binding(node: Any) -> Any:
        launches = isinstance(node, tirx.For) and node.kind == tirx.ForKind.THREAD_BINDING
        launches = launches or (isinstance(node, tirx.AttrStmt) and node.attr_key == "thread_extent")
        return tvm_ffi.structural.WalkResult.SKIP if launches else None

    def access(node: Any) -> None:
        found.append(node)

    def call(node: Any) -> None:
        if getattr(node.op, "name", "") in _CALLS_OF_THE_HOST:
            found.append(node)

    rules = [((tirx.For, tirx.AttrStmt), binding), ((tvm.ir.TensorLoad, tirx.BufferStore), access), (tvm.ir.Call, call)]
    tvm_ffi.structural_walk(root, rules, order="pre")
    return found


def bind_rest(func: tirx.PrimFunc, threads: int) -> tirx.PrimFunc:
    """Return the function with everything that accesses buffers inside kernels, in groups of at most `threads` items.

    Calls of packed functions stay on the host, and `host_accesses` of the result finds them.
    """
    return func.with_body(_bound(func.body, threads))


def _bound(stmt: Any, threads: int) -> Any:
    if not host_accesses(stmt):
        return stmt
    if isinstance(stmt, SBlockRealize) and not stmt.block.iter_vars:
        return SBlockRealize([], stmt.predicate, block_with(stmt.block, body=_bound(stmt.block.body, threads)))
    if isinstance(stmt, tirx.AttrStmt) and stmt.attr_key.startswith("pragma_"):  # drop a hint to the host's compiler
        return _bound(stmt.body, threads)
    if isinstance(stmt, tirx.SeqStmt) and not any(isinstance(s, tirx.Bind) for s in stmt.seq):
        return tirx.SeqStmt([_bound(s, threads) for s in stmt.seq])
    if isinstance(stmt, tirx.For) and _launches(stmt.body):
        return tirx.For(stmt.loop_var, stmt.min, stmt.extent, stmt.kind, _bound(stmt.body, threads))
    if isinstance(stmt, tirx.IfThenElse) and _launches(stmt) and not host_accesses(stmt.condition):
        other = None if stmt.else_case is None else _bound(stmt.else_case, threads)
        return tirx.IfThenElse(stmt.condition, _bound(stmt.then_case, threads), other)
    if isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.PARALLEL:
        return _shared_out(stmt, threads)
    return stmt if _calls_the_host(stmt) else _one_item(stmt)


def _launches(stmt: Any) -> bool:
    """Tell whether a statement already launches kernels."""
    tags = [node.attr_key for node in nodes_of(stmt, tirx.AttrStmt)]
    loops = [node.kind for node in nodes_of(stmt, tirx.For)]
    return "thread_extent" in tags or tirx.ForKind.THREAD_BINDING in loops


def _calls_the_host(stmt: Any) -> bool:
    return any(isinstance(node, tvm.ir.Call) for node in host_accesses(stmt))


def _bind(var: Any, extent: Any, tag: str, body: Any) -> Any:
    dtype = str(var.ty.dtype)
    axis = tirx.IterVar(Range.from_min_extent(tirx.const(0, dtype), extent), var.name, tirx.IterVar.ThreadIndex, tag)
    return tirx.For(var, tirx.const(0, dtype), extent, tirx.ForKind.THREAD_BINDING, body, axis)


def _one_item(stmt: Any) -> Any:
    one = tirx.const(1, "int32")
    return _bind(
        tirx.Var("group", "int32"), one, "blockIdx.x", _bind(tirx.Var("item", "int32"), one, "threadIdx.x", stmt)
    )


def _shared_out(loop: tirx.For, threads: int) -> Any:
    dtype = str(loop.loop_var.ty.dtype)
    group, item = tirx.Var("group", dtype), tirx.Var("item", dtype)
    count = tirx.const(threads, dtype)
    at = group * count + item
    body = tvm_ffi.structural_map(
        loop.body, [(tvm.ir.Var, lambda var: loop.min + at if var.same_as(loop.loop_var) else var)]
    )
    guarded = tirx.IfThenElse(at < loop.extent, body, None)
    groups = tvm.sym.Analyzer().simplify((loop.extent + count - 1) // count)
    return _bind(group, groups, "blockIdx.x", _bind(item, count, "threadIdx.x", guarded))
