"""Find how much memory kernels take for themselves, while TVM compiles them. Start at `Workspaces`.

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

ALIGNMENT = 64  # of every workspace, in bytes
_PASS, _ALLOCATION = "tirx.LowerTVMBuiltin", "tirx.TVMBackendAllocWorkspace"


@dataclass(frozen=True)
class Workspace:
    """The most bytes that a kernel holds at one time: `whole` outside of its parallel loops, and `part` more in every
    part of such a loop that is being run."""

    whole: int = 0
    part: int = 0


@tvm.instrument.pass_instrument
class Workspaces:
    """An instrument of a pass context that collects the workspaces of all kernels that are compiled in it.

    `found` has them by function; kernels that take none are left out.
    """

    def __init__(self) -> None:
        self.found: dict[str, Workspace] = {}

    def most(self, threads: int) -> int:
        """Return the most bytes that one kernel takes on so many threads."""
        return max((space.whole + threads * space.part for space in self.found.values()), default=0)

    def run_after_pass(self, module: IRModule, info: Any) -> None:
        """Look at the functions once their allocations have become calls of the runtime."""
        if str(info.name) != _PASS:
            return
        for name, func in module.functions.items():
            workspace = _workspace_of(func) if isinstance(func, tirx.PrimFunc) else Workspace()
            if workspace != Workspace():
                self.found[name.name_hint] = workspace


def _workspace_of(func: tirx.PrimFunc) -> Workspace:
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
