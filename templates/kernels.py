"""Kernels that are written once for GPUs and for a host's threads. Start at `Emitter`.

A function consists of several launches of groups of items. On a GPU a launch is a kernel and an item is a work-item
(thread). On a host, groups are the iterations of a parallel loop and have one item each, so that barriers do nothing.

TVM does not insert barriers into these kernels: it would put one into every loop whose trip count differs between
items. The author of a kernel says by `Emitter.barrier` where items wait for each other. All items of a group must reach
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.script.ir_builder import IRBuilder
from tvm.target import Target
from tvm.tirx.script import builder as T

from templates.gpu.limits import GpuLimits, gpu_limits
from templates.operator import TensorSpec

Index = Any  # an expression, or a Python integer


class Cells:
    """A buffer whose cells are read and written by indexing this object."""

    def __init__(self, buffer: tirx.Buffer) -> None:
        self.buffer = buffer

    def __getitem__(self, at: Any) -> Any:
        return self.buffer[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        T.buffer_store(self.buffer, value, list(at) if isinstance(at, tuple) else [at])


@dataclass(frozen=True)
class Emitter:
    """An emitter, which generates launches for a target. `limits` is None on a host."""

    limits: GpuLimits | None

    @staticmethod
    def of(target: Target) -> Emitter:
        return Emitter(gpu_limits(target))

    @property
    def max_items(self) -> int:
        """Return how many items a group may have."""
        return 1 if self.limits is None else self.limits.max_threads

    @property
    def on_processor(self) -> bool:
        """Tell whether items run on a CPU, where a few items with much work each are fast.

        These are a host's threads or a CPU behind OpenCL.
        """
        return self.limits is None or self.limits.family == "cpu"

    @contextmanager
    def launch(self, groups: Index, items: int = 1) -> Iterator[tuple[Any, Any]]:
        """Emit a launch, whose body is what is emitted in the context. Yields the group's and the item's index."""
        if self.limits is None:
            assert items == 1, "a host's groups have one item"
            with T.parallel(0, groups) as group:
                yield group, tirx.const(0, "int32")
            return
        with (
            T.launch_thread("blockIdx.x", groups) as group,
            T.attr(0, "hand_threaded", 0),
            T.launch_thread("threadIdx.x", items) as item,
        ):
            yield group, item

    @contextmanager
    def each(self, total: int, items: int) -> Iterator[Any]:
        """Emit a launch of groups of `items`, in which each of `total` items does a piece of work. Yields its index."""
        with self.launch(-(-total // items), items) as (group, i):
            at = held(group * items + i)
            with when(at < total):
                yield at

    def group_sizes(self, *sizes: int) -> tuple[int, ...]:
        """Return those of `sizes` that the target allows."""
        return tuple(size for size in sizes if size <= self.max_items)

    def barrier(self) -> None:
        """Let all items of a group wait for each other.

        What they wrote to shared cells is then visible to all of them. Writes to other memory do not become visible:
        OpenCL orders global memory by another flag.
        """
        if self.limits is not None:
            T.evaluate(T.tvm_storage_sync("shared"))


def own(dtype: str, extent: int = 1) -> Cells:
    """Allocate an item's own cells. They are registers if they are few and indexed by constants."""
    return Cells(T.alloc_buffer((extent,), dtype, scope="local"))


def shared(dtype: str, *extents: int) -> Cells:
    """Allocate cells that a group shares, in local memory on a GPU. `Emitter.barrier` orders accesses to them.

    TVM gives the memory of cells that are not read any more to cells that are written for the first time later. A
    barrier must stand in between.
    """
    return Cells(T.alloc_buffer(extents, dtype, scope="shared"))


def scratch(dtype: str, *extents: int) -> Cells:
    """Allocate cells of the whole function, in the device's memory (the runtime's pool of workspaces)."""
    return Cells(T.alloc_buffer(extents, dtype, scope="global"))


def held(value: Any) -> Any:
    """Compute a value here, once, and return the variable that has it. An expression is computed at each use."""
    return T.Bind(value)


def inside(index: Any, size: int) -> Any:
    """Limit an index to the valid ones, which are 0 to size - 1."""
    return held(tirx.max(tirx.min(index, tirx.const(size - 1, "int32")), tirx.const(0, "int32")))


@contextmanager
def when(condition: Any) -> Iterator[None]:
    """Let what is emitted in the context run only if the condition holds."""
    with T.If(condition), T.Then():
        yield


def choose(condition: Any, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
    """Emit a branch that runs the code of `then` if the condition holds, and that of `otherwise` if not."""
    with T.If(condition):
        with T.Then():
            then()
        with T.Else():
            otherwise()


def function(operands: Sequence[TensorSpec], body: Callable[..., None]) -> tirx.PrimFunc:
    """Build the function of an operator's operands whose code `body(*cells)` emits."""
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        cells = [Cells(T.arg(o.name, T.buffer(o.shape, o.dtype))) for o in operands]
        body(*cells)
    func = builder.get()
    # Relax looks for a block at the root of every function that a network calls.
    return func.with_body(SBlockRealize([], True, SBlock([], [], [], "root", func.body)))
