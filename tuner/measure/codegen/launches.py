"""Compiles a function to the source and the launches of a device's kernels, without host code, for a board where TVM
cannot be installed. Start at `build_launches`; board_agent/opencl.py and board_agent/cuda.py run what it writes.

Every shape is known when a candidate is compiled, so what its host code does (loops, workspaces, the order of kernels)
is a fixed list of launches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from templates.gpu.lowered import buffer_bytes, lower
from templates.rewrite import nodes_of
from tuner.measure.codegen.toolchain import operand_types

_KERNEL, _FIELD = "tirx.call_ffi_kernel", "tirx.tvm_struct_get"
_ARGUMENT = 15  # the field that holds an argument of a packed call
_RANKS, _AXES = ("blockIdx", "threadIdx"), "xyz"
_LOCAL_BYTES = "tirx.use_dyn_shared_memory"  # the tag of the local memory that a launch asks for


def build_launches(func: tirx.PrimFunc, target: Target, path: Path) -> None:
    """Compile a scheduled function for a device and write what `launches_of` returns to `path` as JSON. Raises what
    that raises."""
    path.write_text(json.dumps(launches_of(func, target)))


def launches_of(func: tirx.PrimFunc, target: Target) -> dict[str, Any]:
    """Compile a scheduled function for a device and return an object for JSON.

    The object has the "source" of the kernels, the bytes of each of the "arguments" and "workspaces", and the
    "launches" in order. A launch has "kernel", "groups" and "items" (of a group, by axis), "local_bytes" (of a group,
    beyond what the kernel itself declares) and "arguments". Each of these arguments is a pair: "argument" or
    "workspace" and its number, or the dtype of a number and its value.

    Raises what TVM raises, and RuntimeError if the function computes on the host, or nothing of it runs on the device.
    """
    lowered = lower(func, target)
    if not lowered.kernels:
        raise RuntimeError("the function has no kernel for the device: nothing of it is bound to its threads")
    if lowered.host_accesses:
        raise RuntimeError("the function computes on the host, between its kernels: a board is sent kernels alone")
    kernels = [kernel for _, part in lowered.device for kernel in part.functions.values()]
    types = {str(k.attrs["global_symbol"]): [_type(p) for p in k.params] for k in kernels}
    host = _Host(lowered.host, types)
    return {
        "source": lowered.source(),
        "arguments": [math.prod(shape) * tvm.DataType(dtype).itemsize for shape, dtype in operand_types(func)],
        "workspaces": host.workspaces,
        "launches": host.launches,
    }


def _type(parameter: tvm.ir.Var) -> str | None:
    """Return the dtype of a kernel's parameter that is a number, None for memory."""
    return None if isinstance(parameter.ty, tvm.ir.PointerType) else str(parameter.ty.dtype)


class _Host:
    """Finds out what a lowered host function does, by walking through it. Its checks of the arguments are left out."""

    def __init__(self, entry: tirx.PrimFunc, types: Mapping[str, list[str | None]]) -> None:
        self.workspaces: list[int] = []
        self.launches: list[dict[str, Any]] = []
        self._types = types
        self._packed = entry.params[1]
        self._values: dict[tvm.ir.Var, Any] = {}  # of loop variables
        self._memory: dict[tvm.ir.Var, tuple[str, int]] = {}  # what pointers point to
        self._walk(entry.body)

    def _walk(self, statement: tirx.Stmt) -> None:
        match statement:
            case tirx.SeqStmt():
                for part in statement.seq:
                    self._walk(part)
            case tirx.AttrStmt():
                self._walk(statement.body)
            case tirx.Bind():
                self._bind(statement.var, statement.value)
            case tirx.DeclBuffer():
                self._bind(statement.buffer, statement.data)
            case tirx.AllocBuffer():
                self._memory[statement.buffer] = "workspace", len(self.workspaces)
                self.workspaces.append(buffer_bytes(statement.buffer))
            case tirx.For():
                first = self._number(statement.min)
                for value in range(first, first + self._number(statement.extent)):
                    self._values[statement.loop_var] = tirx.const(value, str(statement.loop_var.ty.dtype))
                    self._walk(statement.body)
            case tirx.Evaluate() if _calls(statement.value, _KERNEL):
                self._launch(statement.value)
            case _ if any(_calls(call, _KERNEL) for call in nodes_of(statement, tvm.ir.Call)):
                raise RuntimeError(f"the function decides on the host what to launch ({type(statement).__name__})")

    def _bind(self, var: tvm.ir.Var, value: Any) -> None:
        if (memory := self._memory_of(value)) is not None:
            self._memory[var] = memory

    def _memory_of(self, value: Any) -> tuple[str, int] | None:
        """Return the memory that an expression of pointers leads to, None if it leads to none."""
        for var in nodes_of(value, tvm.ir.Var):
            if var in self._memory:
                return self._memory[var]
        for call in nodes_of(value, tvm.ir.Call):
            if _calls(call, _FIELD) and call.args[0].same_as(self._packed) and int(call.args[2]) == _ARGUMENT:
                return "argument", int(call.args[1])
        return None

    def _launch(self, call: tvm.ir.Call) -> None:
        kernel, tags = str(call.args[0].value), [str(tag) for tag in call.attrs.launch_params]
        types = self._types[kernel]
        extents: tuple[list[int], list[int]] = ([1, 1, 1], [1, 1, 1])
        given_extents = dict(zip(tags, map(self._number, call.args[1 + len(types) :]), strict=True))
        local_bytes = given_extents.pop(_LOCAL_BYTES, 0)
        for tag, extent in given_extents.items():
            rank, _, axis = tag.partition(".")
            if rank not in _RANKS:
                raise RuntimeError(f"kernel {kernel} has a launch parameter that boards do not know: {tag}")
            extents[_RANKS.index(rank)][_AXES.index(axis)] = extent
        values = zip(call.args[1 : 1 + len(types)], types, strict=True)
        given = [self._memory_of(value) if dtype is None else (dtype, self._number(value)) for value, dtype in values]
        if None in given:
            raise RuntimeError(f"kernel {kernel} is given memory that is neither an argument nor a workspace")
        sizes = {"groups": extents[0], "items": extents[1], "local_bytes": local_bytes}
        self.launches.append({"kernel": kernel, **sizes, "arguments": given})

    def _number(self, value: Any) -> int:
        analyzer = tvm.sym.Analyzer()
        for var, known in self._values.items():
            analyzer.bind(var, known)
        simple = analyzer.simplify(value)
        if not isinstance(simple, tirx.IntImm):
            raise RuntimeError(f"{value} is not known before the function runs")
        return int(simple)


def _calls(value: Any, name: str) -> bool:
    return isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.Op) and str(value.op.name) == name
