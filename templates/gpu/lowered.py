"""This module lowers a scheduled function for a GPU and describes its kernels: launches, local memory, barriers.

Start at `lower`. Offline compilers check none of these: a launch that a device refuses, a barrier that only some items
of a group reach, and code that silently stays on the host all compile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.target import Target
from tvm.tirx.build import codegen_build, split_host_device_mods

from templates.lowering import lowering_context
from templates.rewrite import nodes_of

_AXES = "xyz"
_WARP = 32  # items of a warp (CUDA)
# A "warp" barrier is a barrier of the whole group in OpenCL; CUDA has one for a warp.
_GROUP_BARRIERS = {"opencl": ("shared", "warp"), "cuda": ("shared", "shared.dyn")}


@dataclass(frozen=True)
class Kernel:
    """A kernel that a function launches, and the shape of the launch.

    `grid` counts groups and `group` counts items, along x, y and z. `local_bytes` are per group. `private_bytes` are
    per item, in arrays that a compiler may keep in registers. `types` are the types that are loaded, stored or
    converted to ("float32x4"). `barriers` counts the barriers of the whole group in the text. `divergent_barrier` says
    whether one of them stands where items of a group may diverge.
    """

    name: str
    grid: tuple[int, int, int]
    group: tuple[int, int, int]
    arguments: int
    local_bytes: int
    private_bytes: int
    types: tuple[str, ...]
    barriers: int
    divergent_barrier: bool

    @property
    def items(self) -> int:
        """Return the number of work-items in a group."""
        return math.prod(self.group)


@dataclass(frozen=True)
class Lowered:
    """A lowered function that is split into device code and host code.

    `device` has the kernels' code with the target of each part, as a template may change the target of its own
    function. `host` is the function that launches them. `kernels` are sorted by name. `host_accesses` counts the loads
    and stores of tensors that stayed on the host. `workspace_bytes` is the device memory that a call allocates for
    itself.
    """

    device: tuple[tuple[Target, tvm.IRModule], ...]
    host: tirx.PrimFunc
    kernels: tuple[Kernel, ...]
    host_accesses: int
    workspace_bytes: int

    def source(self) -> str:
        """Generate the OpenCL C or CUDA text of all kernels, without driver or compiler. Raises what TVM raises."""
        with lowering_context():
            return "\n".join(str(codegen_build(part, target).inspect_source()) for target, part in self.device)


def lower(func: tirx.PrimFunc, target: Target) -> Lowered:
    """Lower a scheduled function as `tvm.tirx.build` does, up to code generation. Raises what TVM raises."""
    with lowering_context():
        host = target.host or Target("llvm")
        module = tvm.IRModule.from_expr(func.with_attr("global_symbol", "main"))
        pipeline, _, finish_device = tirx.get_default_tir_pipeline(target)
        module = pipeline(tirx.transform.BindTarget(target.with_host(host))(module))
        host_module, device_modules = split_host_device_mods(module)
        device = tuple((own, finish_device()(part)) for own, part in device_modules.items())
    kernels = [_kernel(f, target.kind.name) for _, part in device for f in part.functions.values()]
    host_funcs = list(host_module.functions.values())
    (entry,) = host_funcs
    return Lowered(
        device,
        entry,
        tuple(sorted(kernels, key=lambda kernel: kernel.name)),
        sum(len(nodes_of(f, TensorLoad)) + len(nodes_of(f, tirx.BufferStore)) for f in host_funcs),
        sum(buffer_bytes(node.buffer) for f in host_funcs for node in nodes_of(f, tirx.AllocBuffer)),
    )


def buffer_bytes(buffer: Any) -> int:
    """Return the size in bytes of a buffer whose shape is constant."""
    element = tvm.DataType(str(buffer.dtype))
    return math.prod(map(int, buffer.shape)) * element.lanes * (-(-element.bits // 8))


def _private_bytes(buffer: Any) -> int:
    """Return how many bytes of a buffer each item holds. Fragments of matrices are spread over the items of a warp."""
    return buffer_bytes(buffer) // (_WARP if str(buffer.scope()).startswith("wmma.") else 1)


def _kernel(func: tirx.PrimFunc, kind: str) -> Kernel:
    launches = [node for node in nodes_of(func, tirx.AttrStmt) if node.attr_key == "thread_extent"]
    extents = {str(node.node.thread_tag): int(node.value) for node in launches}
    buffers = [node.buffer for node in nodes_of(func, tirx.AllocBuffer)]
    local = [b for b in buffers if str(b.scope()).startswith("shared")]
    types = {str(node.ty) for node in nodes_of(func, TensorLoad)}
    types |= {str(node.value.ty) for node in [*nodes_of(func, tirx.BufferStore), *nodes_of(func, tirx.Cast)]}
    return Kernel(
        name=str(func.attrs["global_symbol"]),
        grid=_along(extents, "blockIdx"),
        group=_along(extents, "threadIdx"),
        arguments=len(func.params),
        local_bytes=sum(map(buffer_bytes, local)),
        private_bytes=sum(_private_bytes(b) for b in buffers if b not in local),
        types=tuple(sorted(types)),
        barriers=len(_barriers(func, kind)),
        divergent_barrier=any(_barriers(part, kind) for part in _divergent(func, launches)),
    )


def _along(extents: dict[str, int], prefix: str) -> tuple[int, int, int]:
    x, y, z = (extents.get(f"{prefix}.{axis}", 1) for axis in _AXES)
    return x, y, z


def _barriers(root: Any, kind: str) -> list[Any]:
    calls = [call for call in nodes_of(root, tvm.ir.Call) if getattr(call.op, "name", "") == "tirx.tvm_storage_sync"]
    return [call for call in calls if str(call.args[0].value) in _GROUP_BARRIERS[kind]]


def _divergent(func: tirx.PrimFunc, launches: Iterable[Any]) -> list[Any]:
    """Return the code that items of one group may enter at different times, or not at all.

    These are conditional statements whose condition, and loops whose bounds or condition, depend on the item.
    """
    varying = {node.node.var for node in launches if str(node.node.thread_tag).startswith("threadIdx")}

    def depends(expression: Any) -> bool:
        private = any(str(load.source.scope()) in ("local", "warp") for load in nodes_of(expression, TensorLoad))
        return private or any(var in varying for var in nodes_of(expression, tirx.Var))

    bindings = [(node.var, node.value) for node in nodes_of(func, tirx.Bind)]
    loops = nodes_of(func, tirx.For)
    bindings += [(loop.loop_var, bound) for loop in loops for bound in (loop.min, loop.extent)]
    known = -1
    while known != len(varying):
        known = len(varying)
        varying.update(var for var, value in bindings if var not in varying and depends(value))
    found = [node for node in nodes_of(func, tirx.IfThenElse) if depends(node.condition)]
    found += [node for node in nodes_of(func, tirx.While) if depends(node.condition)]
    return found + [loop for loop in loops if loop.loop_var in varying]
