"""`tune model M.onnx`: tune what a network needs, going on from what the database has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.common import (
    DEFAULT_DB,
    DEFAULT_LEASE,
    DbOption,
    DeviceOption,
    DtypeOption,
    ExactOption,
    JsonOption,
    LeaseOption,
    MinutesOption,
    Output,
    PluginOption,
    PresetOption,
    RayOption,
    SearcherOption,
    SeedOption,
    TemplateOption,
    ThreadsOption,
    TrialsOption,
    VendorOption,
    check_dtype,
    check_file,
    seconds_of,
    templates_asked,
)
from tuner.cli.compile_only import CompileOnlyOption, ConfigsOption, TargetOption, compile_all, profile_asked
from tuner.cli.tuning import Request, finish, tune_tasks
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tuner.devices import Device
    from tuner.graph import FusedGraph
    from tuner.session import Task

ModelArgument = Annotated[Path, typer.Argument(metavar="M.onnx", help="An ONNX model with fixed shapes.")]

EXAMPLES = (
    "tune model resnet18.onnx --minutes 9",
    "tune model resnet18.onnx --device opencl:0 --preset quick --db team.db",
    "tune model resnet18.onnx --target mali-t860 --compile-only",
)


def command(
    model: ModelArgument,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    searcher: SearcherOption = None,
    trials: TrialsOption = None,
    minutes: MinutesOption = None,
    preset: PresetOption = None,
    db: DbOption = DEFAULT_DB,
    seed: SeedOption = 0,
    lease: LeaseOption = DEFAULT_LEASE,
    no_winograd: ExactOption = False,
    dtype: DtypeOption = "float32",
    plugin: PluginOption = None,
    vendor: VendorOption = "",
    template: TemplateOption = None,
    ray: RayOption = None,
    merged: Annotated[
        bool,
        typer.Option(
            "--merged", help="Also tune convolutions of one input made one, for `tune build --stages auto` to choose."
        ),
    ] = False,
    placement: Annotated[
        Path | None,
        typer.Option(
            "--placement",
            metavar="FILE.json",
            help="Also tune the parts of steps that this file of `tune build --write-placement` gives the device.",
        ),
    ] = None,
    target: TargetOption = None,
    compile_only: CompileOnlyOption = False,
    configs: ConfigsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tune what a model needs; run it again to go on."""
    check_file(model, "an ONNX model")
    more = templates_asked(plugin, vendor), tuple(template or ()), check_dtype(dtype), ray
    request = Request(device, threads, searcher, trials, seconds_of(minutes), preset, db, seed, no_winograd, *more)
    request = replace(request, lease_seconds=lease)
    profile = profile_asked(target, compile_only, configs, request)
    if placement is not None:
        check_file(placement, "a placement")
        if profile is not None:
            raise BadInput(f"--placement {placement}: its devices are here: leave --target away")

    def tasks() -> list[Task]:
        return load_tasks(model, dtype, merged, None if placement is None else (placement, device))

    with Output(as_json) as out:
        if profile is not None:
            compile_all(profile, configs, request, tasks, out, model=str(model))
        else:
            finish(tune_tasks(request, tasks, out), out, model=str(model))


def load_tasks(
    model: Path, dtype: str = "float32", merged: bool = False, parts: tuple[Path, str] | None = None
) -> list[Task]:
    """The tuning tasks of an ONNX file, its values stored as `dtype`; `merged`: and of merged kernels for its stages;
    `parts`: and of the parts of steps that a placement's file gives a device. Raises BadInput for one that cannot be
    used."""
    from tuner.graph import merged_tasks, tasks_of

    graph = load_graph(model, dtype)
    tasks = tasks_of(graph)
    more = merged_tasks(graph) if merged else []
    if parts is not None:
        from tuner.placement.parts import part_tasks

        more = [*more, *part_tasks(parts[0], graph, parts[1])]
    known = {task.workload for task in tasks}
    return [*tasks, *{task.workload: task for task in more if task.workload not in known}.values()]


def load_graph(model: Path, dtype: str, devices: Sequence[Device] = ()) -> FusedGraph:
    """An ONNX file with its values stored as `dtype`. Raises BadInput for one that cannot be used, and before that for
    one of `devices` that does not store them."""
    from tuner.devices import check_storage
    from tuner.graph import fuse, halved, load_onnx

    for device in devices:
        check_storage(dtype, device.target, device.title)
    graph = fuse(load_onnx(model))
    return halved(graph) if dtype == "float16" else graph
