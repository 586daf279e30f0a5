"""Describe a lowered network as a list of kernel calls on tensors, for programs that run without TVM. Start at
`program_of`.

The function of the virtual machine holds the same calls. Here they are plain data that can be stored as JSON. No memory
is planned yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise, starmap
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Call, GenericConst, GlobalVar, IRModule, Var

from tuner.devices.opencl import ASIDE, BACK, JOIN
from tuner.devices.parallel.stage import STAGE, groups_of
from tuner.devices.stopwatch import COPY
from tuner.graph.ir.bindings import dtype_of, shape_of
from tuner.graph.ir.simplify import constant, is_call
from tuner.graph.lowering.passes import memory_as_operands
from tuner.graph.lowering.workspaces import Workspace


class NoProgramError(Exception):
    """Raised for a network that is more than a list of kernel calls. The message says what it does besides."""


@dataclass(frozen=True)
class Value:
    """A tensor that kernels read or write. `memory` is the index of the value whose memory holds it: its own, or that
    of the value that it is another shape of. `device` is the index of the device that it is on."""

    shape: tuple[int, ...]
    dtype: str
    memory: int
    device: int = 0


@dataclass(frozen=True)
class KernelCall:
    """A call of a kernel. `operands` are indices of values; the kernel writes to the last of them. The function COPY
    copies its first operand to its second, which is on another device."""

    function: str
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Stage:
    """Calls of a program that run at the same time, in groups (see tuner.stages). `first` is the index of its first
    call. `groups` has, for each group of successive calls, its work, in proportion to which it gets threads of a CPU (0
    on other devices), and how many calls it has."""

    first: int
    groups: tuple[tuple[int, int], ...]

    @property
    def calls(self) -> range:
        """Return the indices of its calls."""
        return range(self.first, self.first + sum(count for _, count in self.groups))

    @property
    def ranges(self) -> tuple[range, ...]:
        """Return the indices of the calls of each group."""
        ends = accumulate((count for _, count in self.groups), initial=self.first)
        return tuple(starmap(range, pairwise(ends)))


@dataclass(frozen=True)
class Program:
    """The kernel calls of an inference, in order, but for those of a stage, which run at the same time.

    `inputs`, `constants` and `outputs` are indices of `values`. `workspaces` has the memory that kernels of a CPU take
    for themselves, by function. `devices` are kinds of devices, such as "cpu". `launches` has what kernels of other
    devices are launched as, by function (see tuner.measure.codegen.launches).
    """

    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    constants: tuple[int, ...]
    outputs: tuple[int, ...]
    calls: tuple[KernelCall, ...]
    workspaces: Mapping[str, Workspace] = field(default_factory=dict)
    devices: tuple[str, ...] = ("cpu",)
    launches: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stages: tuple[Stage, ...] = ()

    def groups(self) -> Iterator[tuple[range, ...]]:
        """Yield the calls in order: the groups of each stage, and a group for each call that is in no stage."""
        staged, at = {stage.first: stage for stage in self.stages}, 0
        while at < len(self.calls):
            found = staged[at].ranges if at in staged else (range(at, at + 1),)
            yield found
            at = found[-1].stop

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON, which `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Program:
        """Return the program that `as_dict` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        program = cls(
            values=tuple(
                Value(tuple(map(int, v["shape"])), str(v["dtype"]), int(v["memory"]), int(v["device"]))
                for v in data["values"]
            ),
            inputs=tuple(map(int, data["inputs"])),
            constants=tuple(map(int, data["constants"])),
            outputs=tuple(map(int, data["outputs"])),
            calls=tuple(KernelCall(str(c["function"]), tuple(map(int, c["operands"]))) for c in data["calls"]),
            workspaces={str(name): Workspace(**sizes) for name, sizes in data["workspaces"].items()},
            devices=tuple(map(str, data["devices"])),
            launches={str(name): dict(described) for name, described in data["launches"].items()},
            stages=tuple(
                Stage(int(s["first"]), tuple((int(work), int(count)) for work, count in s["groups"]))
                for s in data.get("stages", ())  # earlier versions had none
            ),
        )
        if any(stage.calls.stop > len(program.calls) or stage.first < 0 for stage in program.stages):
            raise ValueError("a call that is named does not exist")
        if not all(all(stage.ranges) and stage.groups for stage in program.stages):
            raise ValueError("a stage has no groups, or a group no calls")
        named = (*program.inputs, *program.constants, *program.outputs, *(v.memory for v in program.values))
        if not all(0 <= i < len(program.values) for i in (*named, *(o for c in program.calls for o in c.operands))):
            raise ValueError("a value that is named does not exist")
        return program


def program_of(module: IRModule, inputs: int, lifted: list[np.ndarray] | None = None) -> Program:
    """Return the program of a module that `lower_placed` made, whose first `inputs` parameters are the model's inputs
    and whose others are constants. If `lifted` is given, constants that the module itself holds are appended to it, and
    follow the program's other constants. Workspaces are not known before the kernels are compiled.

    Raises NoProgramError where the network does more than call kernels and copy values between devices.
    """
    main = memory_as_operands()(module)["main"]
    return _Reader(main, lifted).program(inputs)


class _Reader:
    """Reads the bindings of a function in order."""

    def __init__(self, main: relax.Function, lifted: list[np.ndarray] | None) -> None:
        self._main, self._lifted = main, lifted
        self._own: list[int] = []  # the values of `lifted`
        self._values: list[Value] = []
        self._calls: list[KernelCall] = []
        self._stages: list[Stage] = []
        self._begun: list[int] = []  # the first call of each group so far, of a stage on several streams
        self._held: dict[Var, Any] = {}  # the index of a variable's value; a list of them for a tuple

    def program(self, inputs: int) -> Program:
        for parameter in self._main.params:
            self._held[parameter] = self._new(parameter)
        for block in self._main.body.blocks:
            for binding in block.bindings:
                self._held[binding.var] = self._read(binding.var, binding.value)
        outputs = self._of(self._main.body.body)
        parameters = range(len(self._main.params))
        return Program(
            tuple(self._values),
            tuple(parameters[:inputs]),
            (*parameters[inputs:], *self._own),
            tuple(outputs if isinstance(outputs, list) else [outputs]),
            tuple(self._calls),
            stages=tuple(self._stages),
        )

    def _new(self, expr: Any, memory: int | None = None) -> int:
        """Add a value with the type of an expression, and return its index."""
        shape, dtype, index = shape_of(expr), dtype_of(expr), len(self._values)
        if shape is None or dtype is None:
            raise NoProgramError(f"it makes a value of type {expr.ty}")
        placed = getattr(expr.ty, "vdevice", None)
        device = int(placed.vdevice_id) if placed is not None else 0
        self._values.append(Value(shape, dtype, index if memory is None else memory, device))
        return index

    def _read(self, var: Var, value: Any) -> Any:
        if is_call(value, "builtin.alloc_tensor"):
            return self._new(var)
        if is_call(value, "reshape"):
            return self._new(var, self._values[self._of(value.args[0])].memory)
        if isinstance(value, Call) and isinstance(value.op, GlobalVar):
            return self._call(value.op, value.args)
        if isinstance(value, Call) and isinstance(value.op, relax.ExternFunc):
            return self._extern(str(value.op.global_symbol), value.args)
        if isinstance(value, Call):
            raise NoProgramError(f"it calls {value.op}")
        return self._of(value)

    def _extern(self, name: str, arguments: Sequence[Any]) -> int | None:
        """Read the call of a function of the runtime."""
        if name == COPY:
            source, target = self._flat(arguments)
            self._calls.append(KernelCall(COPY, (source, target)))
            return target
        if name == STAGE:
            self._stage(arguments)
        elif name in (ASIDE, BACK):
            self._begun.append(len(self._calls))
        elif name == JOIN:
            ends = *self._begun[1:], len(self._calls)
            groups = tuple((0, end - begin) for begin, end in zip(self._begun, ends, strict=True))
            self._stages.append(Stage(self._begun[0], groups))
            self._begun = []
        else:
            raise NoProgramError(f"it calls {name}")
        return None

    def _call(self, function: GlobalVar, arguments: Sequence[Any]) -> int:
        operands = self._flat(arguments)
        self._calls.append(KernelCall(function.name_hint, tuple(operands)))
        return operands[-1]

    def _stage(self, arguments: Sequence[Any]) -> None:
        first, groups = len(self._calls), []
        for work, kernels in groups_of(arguments):
            for _, function, operands in kernels:
                self._call(function, operands)
            groups.append((work, len(kernels)))
        self._stages.append(Stage(first, tuple(groups)))

    def _of(self, expr: Any) -> Any:
        if isinstance(expr, Var):
            return self._held[expr]
        if isinstance(expr, relax.Tuple):
            return [self._of(item) for item in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self._of(expr.tuple_value)[expr.index]
        if self._lifted is not None and (array := constant(expr)) is not None:
            self._lifted.append(array)
            self._own.append(self._new(expr))
            return self._own[-1]
        what = "a constant of its own" if isinstance(expr, GenericConst) else f"{type(expr).__name__}"
        raise NoProgramError(f"it reads {what}")

    def _flat(self, args: Sequence[Any]) -> list[int]:
        found: list[int] = []
        for arg in args:
            held = self._of(arg)
            found += held if isinstance(held, list) else [held]
        return found
