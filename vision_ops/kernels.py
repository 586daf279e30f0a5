"""Kernels written once for GPUs and for a host's threads: a function of several launches of groups of items.

Start at `Emitter`. On a GPU a launch is a kernel of its own, an item a work-item (thread); on a host groups are the
iterations of a parallel loop and hold one item each, so that barriers are nothing there. TVM's own placing of barriers
is off (it puts one into every loop whose trip count differs between items): whoever writes a kernel says where items
wait for each other, and `barrier` may stand only where all items of a group come by.
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
    """A buffer whose cells are read and written by indexing."""

    def __init__(self, buffer: tirx.Buffer) -> None:
        self.buffer = buffer

    def __getitem__(self, at: Any) -> Any:
        return self.buffer[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        T.buffer_store(self.buffer, value, list(at) if isinstance(at, tuple) else [at])


@dataclass(frozen=True)
class Emitter:
    """Writes launches for a target. `limits`: None on a host."""

    limits: GpuLimits | None

    @staticmethod
    def of(target: Target) -> Emitter:
        return Emitter(gpu_limits(target))

    @property
    def max_items(self) -> int:
        """Of a group."""
        return 1 if self.limits is None else self.limits.max_threads

    @property
    def on_processor(self) -> bool:
        """Whether items are threads of a processor, by whatever interface: few long ones are fast there."""
        return self.limits is None or self.limits.family == "cpu"

    @contextmanager
    def launch(self, groups: Index, items: int = 1) -> Iterator[tuple[Any, Any]]:
        """A launch; gives the group's and the item's index."""
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
        """A launch of groups of `items` with an item for each of `total` pieces of work; gives the piece's index."""
        with self.launch(-(-total // items), items) as (group, i):
            at = held(group * items + i)
            with when(at < total):
                yield at

    def group_sizes(self, *sizes: int) -> tuple[int, ...]:
        """Those that the target allows."""
        return tuple(size for size in sizes if size <= self.max_items)

    def barrier(self) -> None:
        """All items of the group wait for each other; what they wrote to shared cells is seen, and nothing else:
        OpenCL orders global memory by another flag."""
        if self.limits is not None:
            T.evaluate(T.tvm_storage_sync("shared"))


def own(dtype: str, extent: int = 1) -> Cells:
    """Cells of an item: registers, if they are few and indexed by constants."""
    return Cells(T.alloc_buffer((extent,), dtype, scope="local"))


def shared(dtype: str, *extents: int) -> Cells:
    """Cells of a group: local memory on a GPU, which `Emitter.barrier` orders."""
    return Cells(T.alloc_buffer(extents, dtype, scope="shared"))


def scratch(dtype: str, *extents: int) -> Cells:
    """Cells of the whole function, in the device's memory (the runtime's pool of workspaces)."""
    return Cells(T.alloc_buffer(extents, dtype, scope="global"))


def held(value: Any) -> Any:
    """A value computed here, once: an expression that is used often is computed as often."""
    return T.Bind(value)


def inside(index: Any, size: int) -> Any:
    """An index that exists, whatever it was."""
    return held(tirx.max(tirx.min(index, tirx.const(size - 1, "int32")), tirx.const(0, "int32")))


@contextmanager
def when(condition: Any) -> Iterator[None]:
    """What is emitted inside runs where the condition holds."""
    with T.If(condition), T.Then():
        yield


def choose(condition: Any, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
    """One of two pieces of code."""
    with T.If(condition):
        with T.Then():
            then()
        with T.Else():
            otherwise()


def function(operands: Sequence[TensorSpec], body: Callable[..., None]) -> tirx.PrimFunc:
    """The function `body(*cells)` of an operator's operands."""
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        cells = [Cells(T.arg(o.name, T.buffer(o.shape, o.dtype))) for o in operands]
        body(*cells)
    func = builder.get()
    # Relax looks for a block at the root of every function that a network calls.
    return func.with_body(SBlockRealize([], True, SBlock([], [], [], "root", func.body)))
