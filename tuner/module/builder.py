"""Build a module from a network and the tuning database, without measuring. Start at `build`, or at `build_placed` for
a network on several devices.

A module is a directory that holds the kernels (a shared library), the network and manifest.json. The network is the
virtual machine's program with the weights, in the layouts that the kernels read. Weights of devices other than the
first are in one file for each device.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from tvm import tirx
from tvm.ir import Var

from tuner.activity import activity
from tuner.devices import Device, check_storage
from tuner.errors import BadInput, last_line
from tuner.graph import (
    COPY,
    REMEDY,
    AnchorStep,
    DevicePlan,
    FusedGraph,
    MergedOperator,
    Model,
    NoProgramError,
    Placed,
    PlacedOperator,
    PlannedMemory,
    Program,
    TunedStep,
    Workspaces,
    compile_module,
    culprit,
    fuse_for,
    host_of,
    lower_placed,
    program_of,
    with_lifted_constants,
)
from tuner.graph.layout.choice import Choice, Planned, choose
from tuner.graph.layout.weights import smallest, within
from tuner.measure.codegen.launches import launches_of
from tuner.measure.codegen.toolchain import check_toolchain, machine_of
from tuner.module.by_memory import Chooser, too_much
from tuner.module.cpu_features import required_features
from tuner.module.footprint import Lowering
from tuner.module.manifest import Manifest, OperatorEntry, Part, Processor, Sizes
from tuner.module.saving import Check, Contents, Linking, Written, check_directory, save
from tuner.vendors import vendors_of
from tuning_db.record import Workload
from tuning_db.store import Store

_log = logging.getLogger(__name__)

Objective = Literal["latency", "memory", "size"]

_PACKAGES = ("edgetune", "apache-tvm", "apache-tvm-ffi", "numpy", "onnx")


@dataclass(frozen=True)
class BuildOptions:
    """Options of a build; all have defaults.

    - `exact` forbids templates that round differently from the direct algorithm (Winograd).
    - `check` is called with the path of the finished module before the module is moved to its directory. If it raises,
      the directory stays as it was. The errors that it returns are stored in the manifest.
    - `arrange` may change how the kernels are launched, for example in stages. Whatever it raises is passed on.
    - Without `link` the kernels stay an object file, for `tuner.export`: the module cannot be loaded, and no linker for
      its processor is needed.
    - `linker` is the command that links the kernels (default: the plain linker for their processor).
    - With `portable` a network on other devices than a CPU can be exported, too.
    - `objective` says by what kernels are chosen: the fastest ("latency"), those with which an inference needs least
      memory at its peak ("memory"), or those with the smallest weights ("size"); of equal ones the fastest.
    - `max_weights` is the most bytes that the weights may take: kernels with smaller ones are chosen where needed.
    - `max_memory` is the most bytes that an inference may need at its peak, weights included (see `Sizes.peak`).
    """

    exact: bool = False
    check: Check | None = None
    arrange: Callable[[Placed], Placed] | None = None
    link: bool = True
    linker: tuple[str, ...] = ()
    portable: bool = False
    objective: Objective = "latency"
    max_weights: int | None = None
    max_memory: int | None = None

    @property
    def by_memory(self) -> bool:
        """Return whether kernels are chosen by all the memory that an inference needs."""
        return self.objective == "memory" or self.max_memory is not None


def build(
    network: Model | FusedGraph,
    device: Device,
    directory: str | Path,
    store: Store | None = None,
    *,
    choices: Mapping[Workload, Choice] | None = None,
    options: BuildOptions | None = None,
) -> Manifest:
    """Compile a network with the best known configs and write it to `directory`, whole or not at all.

    `choices` overrides the database's configs for the workloads that it contains. An existing directory is replaced
    only if it is a module or empty.

    Raises BadInput if the directory is something else or cannot be written, if a config cannot be applied, or if the
    device cannot run an operator or store the network's values. Raises DatabaseError if the store cannot be read.
    """
    graph, targets = network, [device.target]
    if isinstance(graph, Model):
        graph = fuse_for(graph, targets)
    kernels = {s.out: choices[s.workload] for s in graph.tuned if s.workload in choices} if choices else {}
    planned = Planned([0] * len(graph.steps), kernels=kernels)
    return build_placed(graph, [device], planned, directory=directory, store=store, options=options)


def build_placed(
    network: FusedGraph,
    devices: Sequence[Device],
    planned: Planned,
    *,
    directory: str | Path,
    store: Store | None = None,
    options: BuildOptions | None = None,
) -> Manifest:
    """Build as `build` does, but on several devices, with the placement, layouts and kernels of `planned`."""
    options = options or BuildOptions()
    _prepare(directory, network, devices)
    host = host_of([device.target for device in devices])
    linking = Linking(options.linker or (check_toolchain(host),), machine_of(host)) if options.link else None
    with activity("choosing configs"):
        chosen = _choices(network, devices, planned, store, options.exact)
    if options.objective != "latency" or options.max_weights is not None or options.max_memory is not None:
        chosen = _smaller(network, devices, chosen, planned=planned, store=store, options=options)
    device_plans = [
        DevicePlan(device.target, {}, {out: choice.config for out, choice in kernels.items()})
        for device, kernels in zip(devices, chosen, strict=True)
    ]
    for device, kernels in zip(devices, chosen, strict=True):
        sources = Counter(choice.source for choice in kernels.values())
        _log.info("configs for %s, by source: %s", device.title, dict(sources) or "none")
    with activity(f"lowering {len(network.steps)} operators"):
        placed = _lowered(network, device_plans, planned, options)
    _log.info("lowered %d steps to %d functions", len(network.steps), len(placed.module.functions))
    capture = devices[0].target if placed.captured else None
    workspaces, memory = Workspaces(), PlannedMemory()
    try:
        with activity(f"compiling {len(placed.module.functions)} functions"):
            executable = compile_module(placed.module, host, len(devices), capture, instruments=[workspaces, memory])
    except Exception as error:  # of any type: TVM raises many, none of which names a function
        remedy = REMEDY if not devices[0].is_host else "this is a fault of edgetune's: please report it with the model"
        raise BadInput(f"{network.model.name}: {culprit(placed.module, error)}; {remedy}") from error
    only_here = all(device.is_host for device in devices)
    program = _program(placed, devices, workspaces) if only_here or options.portable else None
    most = workspaces.most(max(device.threads for device in devices))
    compiled = _Compiled(
        network,
        devices,
        placed,
        chosen,
        executable,
        program=program,
        memory=(memory.bytes, most),
        limit=options.max_memory,
    )
    return save(compiled.contents, Path(directory), linking, describe=compiled.manifest, check=options.check)


def _lowered(
    network: FusedGraph, device_plans: Sequence[DevicePlan], planned: Planned, options: BuildOptions
) -> Placed:
    """Lower the network, and arrange it. A portable one gets the stages of one that is not, but no CUDA graph: exports
    make their own."""

    def lowered(lift_all: bool) -> Placed:
        return lower_placed(network, device_plans, planned.placement, planned.blocks, lift_all=lift_all)

    if options.arrange is None:
        return lowered(options.portable)
    arranged = options.arrange(lowered(False))
    on_host = all(plan.target.kind.name == "llvm" for plan in device_plans)
    if arranged.stages and (options.portable or on_host):
        lifted = with_lifted_constants(arranged)
        return replace(lifted, captured=False) if options.portable else lifted
    return lowered(True) if options.portable and not on_host else arranged


def _program(placed: Placed, devices: Sequence[Device], workspaces: Workspaces) -> Program | None:
    """Return the program of a network, or None if it has none."""
    try:
        program = program_of(placed.module, len(placed.inputs))
    except NoProgramError as error:
        _log.info("cannot be exported: %s", error)
        return None
    launches: dict[str, dict[str, Any]] = {}
    for call in program.calls:
        device = program.values[call.operands[-1]].device
        if call.function not in (COPY, *launches) and device < len(devices) and not devices[device].is_host:
            try:
                launches[call.function] = launches_of(placed.module[call.function], devices[device].target)
            except RuntimeError as error:
                raise BadInput(f"{call.function} cannot be exported: {last_line(error)}; {REMEDY}") from error
    kinds = tuple(device.key.kind for device in devices)
    return replace(program, workspaces=workspaces.found, devices=kinds, launches=launches)


def _choices(
    network: FusedGraph, devices: Sequence[Device], planned: Planned, store: Store | None, exact: bool
) -> list[dict[Var, Choice]]:
    """Return the kernel of every tuned step, by device. Where the plan has none, the database has."""
    chosen = []
    for i, device in enumerate(devices):
        here = zip(network.steps, planned.placement, strict=True)
        steps = [s for s, d in here if d == i and isinstance(s, TunedStep)]
        free = (s.workload for s in steps if s.out not in planned.kernels)
        known = choose(free, device, store, exact)
        chosen.append({s.out: planned.kernels.get(s.out) or known[s.workload] for s in steps})
    return chosen


def _smaller(
    network: FusedGraph,
    devices: Sequence[Device],
    chosen: Sequence[Mapping[Var, Choice]],
    *,
    planned: Planned,
    store: Store | None,
    options: BuildOptions,
) -> list[dict[Var, Choice]]:
    """Return the choices with those replaced that take more memory than the options allow. Raises BadInput for limits
    and for the objective "memory" on several devices, with stages, and if a limit cannot be kept."""
    anchors = [step for step in network.steps if isinstance(step, AnchorStep)]
    if options.objective == "size":
        here = zip(devices, chosen, strict=True)
        chosen = [smallest(anchors, kernels, device=d, store=store, exact=options.exact) for d, kernels in here]
    if options.max_weights is None and not options.by_memory:
        return list(map(dict, chosen))
    if len(devices) > 1:
        raise BadInput("a limit of weights or memory, and the objective memory, are for one device: name one")
    device, exact, most = devices[0], options.exact, options.max_weights
    if not options.by_memory:
        assert most is not None
        return [within(most, anchors, chosen[0], device=device, store=store, exact=exact)]
    if options.arrange is not None:
        raise BadInput("kernels of a stage take memory at a time: leave --stages away to choose kernels by memory")
    lowering = Lowering(network, device, planned, portable=options.portable)
    chooser = Chooser(lowering, chosen[0], store, exact=exact, most_weights=most)
    if options.objective == "memory":
        return [chooser.least(options.max_memory)]
    assert options.max_memory is not None
    return [chooser.fastest(options.max_memory)]


def _prepare(directory: str | Path, graph: FusedGraph, devices: Sequence[Device]) -> None:
    """Raise BadInput, before any work that takes time, if the module could not be written or run in the end."""
    check_directory(Path(directory))
    for device in devices:
        check_storage(graph.dtype, device.target, device.title)


@dataclass(frozen=True)
class _Compiled:
    """A network that is compiled for its devices, before it is saved. `chosen` has the kernels by device, and `program`
    is what an export needs. `memory` has the bytes of an inference's values, if they are planned, and of the largest
    workspace. An inference may take `limit` bytes with its weights; None is no limit."""

    graph: FusedGraph
    devices: Sequence[Device]
    placed: Placed
    chosen: Sequence[Mapping[Var, Choice]]
    executable: Any
    program: Program | None
    memory: tuple[int | None, int]
    limit: int | None = None

    @property
    def contents(self) -> Contents:
        """Return what is to be saved."""
        functions = sum(isinstance(f, tirx.PrimFunc) for f in self.placed.module.functions.values())
        parallel = any(device.is_host for device in self.devices)
        return Contents(self.executable.mod, functions, self.placed.constants, parallel, self.program)

    def manifest(self, written: Written) -> Manifest:
        """Return the manifest of the module in the files that were written. Raises BadInput if an inference needs more
        memory than it may."""
        model, placed = self.graph.model, self.placed
        sizes = Sizes(written.weights, written.code, *self.memory)
        if self.limit is not None and sizes.peak is not None and sizes.peak > self.limit:
            raise too_much(sizes.peak)
        operators = tuple(_operator(operator, self.chosen[operator.device]) for operator in placed.operators)
        return Manifest(
            model={"name": model.name, "sha256": model.sha256, "source": model.source, "rounding": model.rounding},
            inputs=model.inputs,
            outputs=model.outputs,
            input_devices=placed.inputs,
            devices=tuple(Processor(d.name, d.key.as_dict(), json.loads(str(d.target))) for d in self.devices),
            threads=max(device.threads for device in self.devices),
            cpu_features=required_features(host_of([device.target for device in self.devices])),
            operators=operators,
            versions={name: version(name) for name in _PACKAGES},
            vendors=vendors_of(operator.config for operator in operators),
            dtype=self.graph.dtype,
            errors={},
            stages=placed.stages,
            entry=placed.entry,
            kernels=written.kernels,
            network=written.network,
            constants=written.constants,
            files=written.files,
            program=written.program,
            objects=written.objects,
            sizes=sizes,
            precisions=self.graph.precisions,
        )


def _operator(placed: PlacedOperator | MergedOperator, chosen: Mapping[Var, Choice]) -> OperatorEntry:
    if isinstance(placed, MergedOperator):
        choice = placed.choice
        measured = choice.source, choice.seconds, choice.error
        parts = tuple(Part(part.step.node, part.result, part.first_block) for part in placed.parts)
        return OperatorEntry(
            placed.node, placed.function, placed.workload, choice.config, *measured, device=placed.device, parts=parts
        )
    lowered = placed.operator
    choice = chosen[lowered.step.out]
    return OperatorEntry(
        lowered.step.node,
        lowered.function,
        lowered.step.workload,
        lowered.config,
        choice.source,
        choice.seconds,
        choice.error,
        lowered.first_block,
        placed.device,
    )
