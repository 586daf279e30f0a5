"""`tune export DIR -o OUT` writes a built module as a C library that needs neither Python nor TVM."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tuner.cli.build import build_verified
from tuner.cli.built import BuildRequest
from tuner.cli.checks import InputOption, ToleranceOption, checks_asked
from tuner.cli.common import (
    DEFAULT_DB,
    DEFAULT_DEVICE,
    DbOption,
    DtypeOption,
    ExactOption,
    JsonOption,
    MaxMemoryOption,
    MaxWeightsOption,
    Objective,
    ObjectiveOption,
    Output,
    ThreadsOption,
    check_parent_writable,
    size_asked,
)
from tuner.cli.completion import CPUS, one_of
from tuner.cli.network import AS_FILE, BatchOption, ShapeOption, network_asked
from tuner.cli.on_board import build_for, check_module_there, check_there, is_on_board, open_for_build
from tuner.cli.precision import PrecisionOption, precision_asked
from tuner.cli.stages import StageLimitsOption, StageMinutesOption, Stages, StagesOption, options_asked
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tuner.export import Exported
    from tuner.export.checking import Check


class Libc(StrEnum):
    """The C library of the system that an export is for."""

    GNU = "gnu"
    MUSL = "musl"
    BIONIC = "bionic"


EXAMPLES = (
    "tune export resnet18.tuned -o resnet18.c --name classifier",
    "tune export resnet18.onnx -o resnet18.pi --target rpi5 --dtype float16",
    "tune export resnet18.onnx -o resnet18.orin --target jetson-orin:cuda",
)


def command(
    model: Annotated[
        Path, typer.Argument(metavar="DIR|M.onnx", help="A folder that `tune build` wrote, or a model to build first.")
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The folder to write to.")],
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="What the library and its functions are called (default: as M)."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="CPU[:GPU]",
            help=f"A processor that is not here: {', '.join(CPUS)}. With :cuda the GPU of a Jetson, with :sm_86 any of "
            "that architecture; with ,cpu behind it what the GPU cannot, the CPU does.",
            autocompletion=one_of(CPUS),
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            metavar="D",
            help="cpu, opencl:N, cuda:N, both with ,cpu; board:NAME, board:NAME/opencl:N, that with ,cpu: verified and "
            "timed there.",
        ),
    ] = DEFAULT_DEVICE,
    libc: Annotated[
        Libc | None,
        typer.Option("--libc", help="The C library of the system: glibc, musl or Android's (default: as here)."),
    ] = None,
    experimental: Annotated[
        bool, typer.Option("--experimental", help="Allow what is an experiment: --target wasm32.")
    ] = False,
    shape: ShapeOption = None,
    batch: BatchOption = None,
    dtype: DtypeOption = "float32",
    precision: PrecisionOption = AS_FILE,
    threads: ThreadsOption = None,
    db: DbOption = DEFAULT_DB,
    no_winograd: ExactOption = False,
    stages: StagesOption = Stages.OFF,
    stage_minutes: StageMinutesOption = 5.0,
    stage_limits: StageLimitsOption = "",
    tolerance: ToleranceOption = None,
    input: InputOption = None,
    objective: ObjectiveOption = Objective.LATENCY,
    max_weights: MaxWeightsOption = None,
    max_memory: MaxMemoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a network as a C library with a header, weights, an example and a wrapper for Python."""
    _check_processor(model, target, device)
    staging = options_asked(stage_minutes, stage_limits, no_winograd) if stages is Stages.AUTO else None
    if staging is not None and target is not None:
        raise BadInput("--stages: they are measured on a device that is here: leave --target or --stages away")
    changes = objective is not Objective.LATENCY or max_weights or max_memory or staging or precision != AS_FILE
    if model.is_dir() and (shape or batch or dtype != "float32" or threads or input or tolerance or changes):
        raise BadInput(f"{model}: was built already: options of a build go with a model")
    most_weights, most_memory = size_asked("--max-weights", max_weights), size_asked("--max-memory", max_memory)
    check_parent_writable(output)
    if output.exists() and not output.is_dir():
        raise BadInput(f"{output}: is a file; give a folder")
    with Output(as_json) as out, tempfile.TemporaryDirectory() as folder:
        from tuner.export import export, identifier

        if name is not None:
            identifier(name, given=True)  # before anything that takes time
        module, check = model, None
        if model.is_dir() and is_on_board(device):
            check = check_module_there(model, device, out)
        elif not model.is_dir():
            network, module = (
                network_asked(model, shape, batch, dtype, precision_asked(precision)),
                Path(folder) / "module",
            )
            checks = checks_asked(tolerance, input)
            request = BuildRequest(
                network,
                module,
                device,
                threads,
                db,
                exact=no_winograd,
                staging=staging,
                checks=checks,
                portable=True,
                objective=objective,
                max_weights=most_weights,
                max_memory=most_memory,
            )
            check = _built(request, target, out, experimental=experimental)
        exported = export(module, output, name, libc=None if libc is None else libc.value, check=check)
        _show(exported, out)
        needed = exported.weights + exported.arena + exported.device
        if most_memory is not None and needed > most_memory:
            text = f"the library needs {needed / 2**20:.1f} MiB, as its arena has room for inputs"
            out.remark(f"{text}: that is above --max-memory")
        out.result({**asdict(exported), "folder": str(exported.folder)})


def _check_processor(model: Path, target: str | None, device: str) -> None:
    """Raise BadInput for a processor that nothing is exported for, or where options do not fit together."""
    if model.is_dir() and (target is not None or (device != DEFAULT_DEVICE and not is_on_board(device))):
        raise BadInput(f"{model}: was built already: --target and --device go with a model, or the device is a board's")
    if target is not None and device != DEFAULT_DEVICE:
        raise BadInput("--target and --device both say for which processor: give one of them")
    if target is not None and target.partition(":")[0] not in CPUS:
        raise BadInput(f"--target {target}: is not known; choose among {', '.join(CPUS)}")


def _built(request: BuildRequest, target: str | None, out: Output, *, experimental: bool) -> Check | None:
    """Build the model, for a target that may be `experimental`. Return how its export is checked if not as usual."""
    if target is None and not is_on_board(request.device):
        build_verified(request, out)
        return None
    from tuner.devices.elsewhere import devices_elsewhere
    from tuner.export.checking import check_nothing
    from tuner.module import BuildOptions

    if target is None:
        devices = open_for_build(request, out)
    else:
        devices = devices_elsewhere(target, request.threads, experimental=experimental)
    options = BuildOptions(
        request.exact,
        link=False,
        portable=True,
        objective=request.objective.value,
        max_weights=request.max_weights,
        max_memory=request.max_memory,
    )
    build_for(request, devices, options, out)
    return check_there(request.device, request.network.file, request.checks, out) if target is None else check_nothing


def _show(exported: Exported, out: Output) -> None:
    name = exported.name
    table = Table(box=None)
    for title in ("file", "what it is"):
        table.add_column(title)
    is_module = exported.libc == "wasi"
    library = f"{name}.wasm" if is_module else f"lib{name}.so"
    table.add_row(f"{library}, lib{name}.a", f"kernels and runtime, {exported.library / 1024:.0f} KiB")
    table.add_row(f"{name}.weights", f"{exported.weights / 2**20:.1f} MiB")
    table.add_row(f"{name}.h, {name}.hpp", "interfaces for C and C++")
    if is_module:
        table.add_row(f"{name}.py", "wrapper for Python with NumPy and wasmtime")
        table.add_row("example.c", "a program that runs it")
    else:
        table.add_row(f"{name}.py", "wrapper for Python with NumPy")
        table.add_row("example.c, Makefile, CMakeLists.txt", "a program that runs it")
        table.add_row("serve.py", "a small server for HTTP")
    out.show(table)
    device = f" and {exported.device / 2**20:.1f} MiB on the device" if exported.device else ""
    out.show(
        f"wrote {exported.folder}: {exported.calls} kernel calls, {exported.arena / 2**20:.1f} MiB of memory{device} "
        f"besides the weights ({exported.least / 2**20:.1f} are needed at one time)"
    )
    if "seconds" in exported.checked:
        worst = max(exported.checked["errors"].values(), default=0.0)
        seconds = 1e3 * exported.checked["seconds"]
        out.show(f"on {exported.checked['device']}: {seconds:.3g} ms; largest error against the model {worst:.1e}")
    elif exported.checked:
        out.show("all outputs equal the module's, bit for bit")
    else:
        out.remark("it was not run, as it is for another system: compare its outputs there")
