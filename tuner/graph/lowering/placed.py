"""Lower a network for several devices: each step is computed where a placement says. Start at `lower_placed`.

Consecutive steps on one device are lowered and finished like a network of their own. They are put together in one
function, with a copy where a value crosses devices (in the form in which it was made). Constants become parameters,
which are put on their devices once, when a module is loaded; the host's are in memory of our own. Only a first device
that is not the host keeps its constants.

The host does not wait for a GPU until a value is copied from it. The GPU computes in order, so a copy waits for
everything that was launched before. A value is therefore copied from a GPU before the GPU is given more to do. If the
GPU gets nothing more, the value is copied only when it is needed. Then the host's steps, and the GPU's steps before
them, are computed at the same time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import Call, GenericConst, GlobalVar, IRModule, Var
from tvm.relax.global_info import VDevice
from tvm.target import Target

from templates.template import PLAIN, Layout
from tuner.devices.stopwatch import COPY
from tuner.graph.fusion.steps import AnchorStep, FusedGraph, Step, TunedStep, reads_of
from tuner.graph.ir.bindings import Bindings, operands
from tuner.graph.ir.simplify import constant
from tuner.graph.layout.choice import Choice
from tuner.graph.lowering.capture import CAPTURED
from tuner.graph.lowering.emit import Forms
from tuner.graph.lowering.kernels import DevicePlan, kernels_of
from tuner.graph.lowering.lower import Decisions, Given, Lowered, LoweredOperator, lower_steps
from tuner.graph.lowering.passes import finish
from tuning_db.record import Workload

_NAME_LENGTH = 100  # drivers name files after kernels, and TVM names kernels after all operators that it fused


@dataclass(frozen=True)
class PlacedOperator:
    """A step that a template computes, and the index of its device."""

    operator: LoweredOperator
    device: int


@dataclass(frozen=True)
class Part:
    """The result of one step that a merged kernel computes. It lies in the `result`-th of the kernel's last tensors,
    from the channel block `first_block` on."""

    step: AnchorStep
    result: int
    first_block: int


@dataclass(frozen=True)
class MergedOperator:
    """Several steps that one kernel computes (see `merge`). `workload`, `choice` and `function` are those of the
    kernel, and `parts` are the results of the steps."""

    node: str
    workload: Workload
    choice: Choice
    function: str
    parts: tuple[Part, ...]
    device: int = 0


@dataclass(frozen=True)
class Placed:
    """A network that was lowered for its devices.

    `module` is finished. The parameters of its "main" are the model's inputs, each on the device whose index `inputs`
    has, followed by `constants[i]` on every device i. `stages` says how its kernels are launched, if not one after the
    other (see tuner.stages). `captured` says whether they are launched as one CUDA graph (see `capture`).
    """

    module: IRModule
    operators: tuple[PlacedOperator | MergedOperator, ...]
    inputs: tuple[int, ...]
    constants: tuple[tuple[np.ndarray, ...], ...]
    stages: tuple[str, ...] = ()
    captured: bool = False

    @property
    def entry(self) -> str:
        """Return the name of the function of the compiled module that computes an inference."""
        return CAPTURED if self.captured else "main"


@dataclass(frozen=True, eq=False)
class Segment:
    """Consecutive steps that are computed on one device. `reads` are the variables that they read from elsewhere, and
    `results` are those of their results that are read elsewhere or are outputs."""

    device: int
    steps: tuple[Step, ...]
    reads: tuple[Var, ...]
    results: tuple[Var, ...]


def host_of(targets: Sequence[Target]) -> Target:
    """Return the target that code for the host is compiled for: a CPU's own, or else the host of the first GPU."""
    cpu = next((target for target in targets if target.kind.name == "llvm"), None)
    return cpu or targets[0].host or Target("llvm")


def lower_placed(
    graph: FusedGraph,
    device_plans: Sequence[DevicePlan],
    placement: Sequence[int],
    blocks: Mapping[Var, int] | None = None,
    *,
    lift_all: bool = False,
) -> Placed:
    """Lower every step for its device. `placement` has the index of the device of each of `graph.steps`. `blocks` has
    the layout block that some steps are computed in (see `lower.lower_steps`). With `lift_all`, constants of a first
    device that is not the host become parameters as well.

    Raises BadInput if a config cannot be applied or if a function for a GPU would run on the host.
    """
    kernels = [
        kernels_of((s for s in _on(graph, placement, i) if isinstance(s, TunedStep)), device_plan)
        for i, device_plan in enumerate(device_plans)
    ]
    outputs = {o for o in graph.outputs if isinstance(o, Var)}
    layouts: dict[Var, Layout] = dict.fromkeys(graph.parameters, PLAIN)
    pieces = []
    for segment in _segments(graph, placement):
        given = [Given(v, parameter_for(v, layouts[v]), layouts[v]) for v in segment.reads]

        def results(forms: Forms, segment: Segment = segment) -> list[Any]:
            held = [(forms.get(v, PLAIN), PLAIN) if v in outputs else forms.native(v) for v in segment.results]
            layouts.update(zip(segment.results, (layout for _, layout in held), strict=True))
            return [expr for expr, _ in held]

        target = device_plans[segment.device].target
        decisions = Decisions(kernels[segment.device], blocks or {})
        lowered = lower_steps(graph, segment.steps, given, results=results, decisions=decisions, target=target)
        pieces.append((segment, replace(lowered, module=finish(lowered.module, target))))
    targets = [device_plan.target for device_plan in device_plans]
    return _Assembly(graph, targets, pieces, lift_all).assembled()


def _on(graph: FusedGraph, placement: Sequence[int], device: int) -> list[Step]:
    return [step for step, d in zip(graph.steps, placement, strict=True) if d == device]


def _segments(graph: FusedGraph, placement: Sequence[int]) -> list[Segment]:
    runs = [
        (device, tuple(step for step, _ in group))
        for device, group in groupby(zip(graph.steps, placement, strict=True), key=lambda pair: pair[1])
    ]
    reads = [read_from_elsewhere(steps) for _, steps in runs]
    outputs = [o for o in graph.outputs if isinstance(o, Var)]
    segments = []
    for i, (device, steps) in enumerate(runs):
        later = {v for read in reads[i + 1 :] for v in read}.union(outputs)
        segments.append(Segment(device, steps, reads[i], tuple(s.out for s in steps if s.out in later)))
    return segments


def read_from_elsewhere(steps: Sequence[Step]) -> tuple[Var, ...]:
    """Return the variables that steps read and that none of them makes, in order."""
    made = {step.out for step in steps}
    found: dict[Var, None] = {}
    for step in steps:
        found.update((r, None) for r in reads_of(step) if r not in made)
    return tuple(found)


def parameter_for(var: Var, layout: Layout) -> Var:
    """Return a parameter that holds `var` in a layout, under the name of `var`."""
    if not layout.block:
        return relax.Var(var.name, var.ty)
    return relax.Var(var.name, relax.TensorType(layout.shape([int(s) for s in var.ty.shape]), var.ty.dtype))


class _Assembly:
    """Builds the function that runs all segments."""

    def __init__(
        self,
        graph: FusedGraph,
        targets: Sequence[Target],
        pieces: Sequence[tuple[Segment, Lowered]],
        lift_all: bool = False,
    ) -> None:
        self._graph = graph
        self._lift_all = lift_all
        self._pieces = pieces
        host = host_of(targets)
        self._targets = [t if t.kind.name == "llvm" else t.with_host(host) for t in targets]
        # The virtual machine lists the host behind all other devices. A copy between two GPUs goes through the host.
        self._host = next((i for i, t in enumerate(targets) if t.kind.name == "llvm"), len(targets))
        extended = [*self._targets, host] if self._host == len(targets) else self._targets
        self._devices = [VDevice(target, i, "global") for i, target in enumerate(extended)]
        self._builder = relax.BlockBuilder()
        self._constants: list[dict[bytes, tuple[np.ndarray, Var]]] = [{} for _ in targets]
        self._lifted: dict[tuple[int, GenericConst], Var] = {}  # the parameters that replace constants, by device
        self._home: dict[Var, int] = {}
        self._held: dict[tuple[Var, int], Any] = {}  # values of the graph by device
        self._readers: dict[Var, set[int]] = {}  # the devices that read each value
        self._leaving: list[Var] = []  # values on a GPU that other devices read, not yet copied
        self._operators: list[PlacedOperator] = []

    def assembled(self) -> Placed:
        for segment, _ in self._pieces:
            for var in segment.reads:
                self._readers.setdefault(var, set()).add(segment.device)
                self._home.setdefault(var, segment.device)
            self._home.update(dict.fromkeys(segment.results, segment.device))
        inputs = [self._home_of_input(parameter) for parameter in self._graph.parameters]
        parameters = []
        for var, device in zip(self._graph.parameters, inputs, strict=True):
            parameter = relax.Var(var.name, self._placed(var.ty, device))
            self._home[var] = device
            self._hold(var, device, parameter)
            parameters.append(parameter)
        for segment, lowered in self._pieces:
            self._lift(segment, lowered)
        if self._host == 0 or self._lift_all:
            for output in self._graph.outputs:
                self._lift_constant(output, 0)
        lifted = [var for constants in self._constants for _, var in constants.values()]
        with self._builder.function("main", [*parameters, *lifted]):
            with self._builder.dataflow():
                for segment, lowered in self._pieces:
                    self._add(segment, lowered)
                results = [
                    self._held[o, self._home[o]] if isinstance(o, Var) else self._lifted.get((0, o), o)
                    for o in self._graph.outputs
                ]
                result = self._builder.emit_output(relax.Tuple(results))
            self._builder.emit_func_output(result)
        module = self._builder.get()
        module.update_global_info("vdevice", self._devices)
        constants = tuple(tuple(array for array, _ in c.values()) for c in self._constants)
        return Placed(module, tuple(self._operators), tuple(inputs), constants)

    def _placed(self, ty: Any, device: int) -> Any:
        """Return a type with all of its tensors on a device."""
        if isinstance(ty, relax.TensorType):
            return relax.TensorType(ty.shape, ty.dtype, self._devices[device])
        if isinstance(ty, relax.TupleType):
            return relax.TupleType([self._placed(field, device) for field in ty.fields])
        return ty

    def _lift(self, segment: Segment, lowered: Lowered) -> None:
        """Make parameters of a segment's constants, except on a first device that is not the host."""
        if segment.device == 0 and self._host != 0 and not self._lift_all:
            return
        bindings = Bindings.of(lowered.module["main"])
        for value in (*bindings.values, relax.Tuple(list(bindings.outputs))):
            for leaf in operands(value):
                self._lift_constant(leaf, segment.device)

    def _lift_constant(self, leaf: Any, device: int) -> None:
        """Make a parameter of an expression that is a constant."""
        array = None if (device, leaf) in self._lifted else constant(leaf)
        if array is None:
            return
        held, key = self._constants[device], digest(array)
        if key not in held:
            held[key] = array, relax.Var(f"constant_{device}_{len(held)}", self._placed(leaf.ty, device))
        self._lifted[device, leaf] = held[key][1]

    def _add(self, segment: Segment, lowered: Lowered) -> None:
        main, device = lowered.module["main"], segment.device
        functions = {
            name: self._builder.add_func(func.with_attr("target", self._targets[device]), name.name_hint[:_NAME_LENGTH])
            for name, func in lowered.module.functions.items()
            if isinstance(func, tirx.PrimFunc)
        }
        by_name = {old.name_hint: new.name_hint for old, new in functions.items()}
        for operator in lowered.operators:
            if operator.function not in (None, *by_name):
                continue  # all of its operands were constants, so its results are constants now
            function = by_name[operator.function] if operator.function is not None else None
            self._operators.append(PlacedOperator(replace(operator, function=function), device))
        bindings, values = Bindings.of(main), dict[Var, Any]()
        rebuilt = partial(self._rebuilt, values=values, functions=functions, device=device)
        reads = dict(zip(main.params, segment.reads, strict=True))
        due = dict(zip(segment.results, bindings.outputs, strict=True))

        def fetch(expr: Any) -> None:
            """Copy the values that an expression reads to this device. They are copied only when they are read, since
            the device that makes them may still be computing."""
            for leaf in _variables(expr):
                if leaf in reads and leaf not in values:
                    values[leaf] = self._on(reads[leaf], device)

        for var, value in zip(bindings.variables, bindings.values, strict=True):
            self._send(device)
            fetch(value)
            values[var] = self._builder.emit(rebuilt(value))
            for result in [r for r, output in due.items() if all(leaf in values for leaf in _variables(output))]:
                self._hold(result, device, rebuilt(due.pop(result)))
        for result, output in due.items():
            fetch(output)
            self._hold(result, device, rebuilt(output))

    def _rebuilt(self, expr: Any, values: dict[Var, Any], functions: dict[GlobalVar, GlobalVar], device: int) -> Any:
        """Return an expression of a finished segment as an expression of the whole function: on its device, with the
        variables and functions of the whole."""
        again = partial(self._rebuilt, values=values, functions=functions, device=device)
        if isinstance(expr, GlobalVar):
            return functions[expr]
        if isinstance(expr, Var):
            return values[expr]
        if isinstance(expr, GenericConst):
            return self._lifted.get((device, expr), expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([again(field) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(again(expr.tuple_value), expr.index)
        if isinstance(expr, Call):
            types = [self._placed(ty, device) for ty in expr.ty_args]
            return Call(expr.op, [again(arg) for arg in expr.args], expr.attrs, types)
        return expr

    def _home_of_input(self, var: Var) -> int:
        """Return the host if it reads the input, since inputs come from there. Else return the first device that reads
        it."""
        return self._host if self._host in self._readers.get(var, ()) else self._home.get(var, 0)

    def _hold(self, var: Var, device: int, value: Any) -> None:
        """Record that a value was made on a device."""
        self._held[var, device] = value
        if device != self._host and self._readers.get(var, set()) - {device}:
            self._leaving.append(var)

    def _send(self, device: int) -> None:
        """Copy the values of a GPU that other devices read to the host, before the GPU gets more to do. A copy waits
        for everything that the GPU was given before."""
        due = [var for var in self._leaving if self._home[var] == device]
        self._leaving = [var for var in self._leaving if self._home[var] != device]
        for var in due:
            self._on(var, self._host)

    def _on(self, var: Var, device: int) -> Any:
        """Return a value of the graph on a device. It is copied there, once, if it is not there yet."""
        if (var, device) not in self._held:
            home = self._home[var]
            through_host = self._host not in (home, device)
            source = self._on(var, self._host) if through_host else self._held[var, home]
            self._held[var, device] = self._copied(source, device)
        return self._held[var, device]

    def _copied(self, expr: Any, device: int) -> Any:
        if isinstance(expr.ty, relax.TupleType):
            fields = range(len(expr.ty.fields))
            return relax.Tuple([self._copied(relax.TupleGetItem(expr, i), device) for i in fields])
        if not isinstance(expr.ty, relax.TensorType):
            return expr
        # The copy goes into memory that is planned like any other. TVM's own copy allocates memory at every call.
        return self._builder.emit(relax.call_dps_packed(COPY, [expr], out_ty=self._placed(expr.ty, device)))


def _variables(expr: Any) -> list[Var]:
    return [leaf for leaf in operands(expr) if isinstance(leaf, Var)]


def digest(array: np.ndarray) -> bytes:
    """Return what tells an array from all others, by its dtype, shape and values."""
    return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).digest()
