"""`tune model M.onnx` tunes what a network needs, and goes on from what the database has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.common import (
    DEFAULT_DB,
    DEFAULT_DEVICE,
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
    check_file,
    seconds_of,
    templates_asked,
)
from tuner.cli.compile_only import CompileOnlyOption, ConfigsOption, TargetOption, compile_all, profile_asked
from tuner.cli.network import AS_FILE, BatchOption, ModelArgument, ShapeOption, load_tasks, network_asked
from tuner.cli.precision import MIXED, TunedPrecisionOption, precision_asked, time_conversions
from tuner.cli.tuning import Request, finish, tune_tasks
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tvm.target import Target

    from tuner.session import Task

EXAMPLES = (
    "tune model resnet18.onnx --minutes 9",
    "tune model resnet18.onnx --device opencl:0 --preset quick --db team.db",
    "tune model resnet18.onnx --target mali-t860 --compile-only",
)


def command(
    model: ModelArgument,
    *,
    shape: ShapeOption = None,
    batch: BatchOption = None,
    device: DeviceOption = DEFAULT_DEVICE,
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
    precision: TunedPrecisionOption = AS_FILE,
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
    network = network_asked(model, shape, batch, dtype, precision_asked(precision, built=False))
    more = templates_asked(plugin, vendor), tuple(template or ()), dtype, ray
    request = Request(device, threads, searcher, trials, seconds_of(minutes), preset, db, seed, no_winograd, *more)
    request = replace(request, lease_seconds=lease)
    profile = profile_asked(target, compile_only, configs, request)
    if placement is not None:
        check_file(placement, "a placement")
        if profile is not None:
            raise BadInput(f"--placement {placement}: its devices are here: leave --target away")

    def tasks(target: Target) -> list[Task]:
        return load_tasks(network, out, target, merged, None if placement is None else (placement, device))

    with Output(as_json) as out:
        if profile is not None:
            compile_all(profile, configs, request, make_tasks=tasks, out=out, model=str(model))
        else:
            report = tune_tasks(request, tasks, out)
            if precision == MIXED and report.stopped != "interrupted":
                time_conversions(device, threads, db, out)
            finish(report, out, model=str(model))
