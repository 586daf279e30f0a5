"""Find how much memory kernels take for themselves. `Workspaces` does that for all kernels that are being compiled, and
`workspace_of` for one that is not compiled.

A kernel takes such a workspace from the runtime and gives it back before it returns. A program without allocations has
to know beforehand how much that can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule
from tvm.target import Target
from tvm.tirx.build import split_host_device_mods

from templates.lowering import PIPELINE, lowering_context

ALIGNMENT = 64  # of every workspace, in bytes
_PASS, _ALLOCATION = "tirx.LowerTVMBuiltin", "tirx.TVMBackendAllocWorkspace"


@dataclass(frozen=True)
class Workspace:
    """The most bytes that a kernel holds at one time: `whole` outside of its parallel loops, and `part` more in every
    part of such a loop that is being run."""

    whole: int = 0
    part: int = 0

    def on(self, threads: int) -> int:
        """Return the most bytes that the kernel holds on so many threads."""
        return self.whole + threads * self.part


@tvm.instrument.pass_instrument
class Workspaces:
    """An instrument of a pass context that collects the workspaces of all kernels that are compiled in it.

    `found` has them by function; kernels that take none are left out.
    """

    def __init__(self) -> None:
        self.found: dict[str, Workspace] = {}

    def most(self, threads: int) -> int:
        """Return the most bytes that one kernel takes on so many threads."""
        return max((space.on(threads) for space in self.found.values()), default=0)

    def run_after_pass(self, module: IRModule, info: Any) -> None:
        """Look at the functions once their allocations have become calls of the runtime."""
        if str(info.name) != _PASS:
            return
        for name, func in module.functions.items():
            workspace = _counted(func) if isinstance(func, tirx.PrimFunc) else Workspace()
            if workspace != Workspace():
                self.found[name.name_hint] = workspace


def workspace_of(func: tirx.PrimFunc, target: Target) -> Workspace:
    """Return what a scheduled function takes for itself. It is lowered as TVM compiles it, and no code is generated.

    Raises what TVM raises.
    """
    found = Workspaces()
    own_host = target if target.kind.name == "llvm" else Target("llvm")
    pipeline, finish_host, _ = tirx.get_tir_pipeline(PIPELINE)
    bind = tirx.transform.BindTarget(target.with_host(target.host or own_host))
    with lowering_context(found):
        module = pipeline(bind(IRModule.from_expr(func.with_attr("global_symbol", "kernel"))))
        finish_host()(split_host_device_mods(module)[0])
    return max(found.found.values(), key=lambda space: space.whole + space.part, default=Workspace())


def _counted(func: tirx.PrimFunc) -> Workspace:
    """Return the sum of a kernel's allocations. It may take fewer bytes at one time, but not more."""
    loops = _parallel_loops(func.body)
    inner = [loop for outer in loops for loop in _parallel_loops(outer.body)]  # a part runs these by itself
    parts = [_allocated(loop.body) for loop in loops if not any(loop.same_as(other) for other in inner)]
    return Workspace(_allocated(func.body) - sum(parts), max(parts, default=0))


def _parallel_loops(body: Any) -> list[Any]:
    loops: list[Any] = []
    tvm_ffi.structural_walk(body, [(tirx.For, loops.append)])
    return [loop for loop in loops if loop.kind == tirx.ForKind.PARALLEL]


def _allocated(body: Any) -> int:
    calls: list[Any] = []
    tvm_ffi.structural_walk(body, [(tvm.ir.Call, calls.append)])
    sizes = [int(call.args[2]) for call in calls if getattr(call.op, "name", None) == _ALLOCATION]
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)
