"""`tune export DIR -o OUT` writes a built module as a C library that needs neither Python nor TVM."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tuner.cli.build import BuildRequest, build_verified, show
from tuner.cli.common import (
    DEFAULT_DB,
    DEFAULT_DEVICE,
    DbOption,
    ExactOption,
    JsonOption,
    Output,
    ThreadsOption,
    check_parent_writable,
)
from tuner.cli.completion import CPUS, one_of
from tuner.cli.network import BatchOption, ShapeOption, load_graph, network_asked
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tuner.export import Exported


class Libc(StrEnum):
    """The C library of the system that an export is for."""

    GNU = "gnu"
    MUSL = "musl"


EXAMPLES = (
    "tune export resnet18.tuned -o resnet18.c",
    "tune export resnet18.onnx -o resnet18.c --name classifier",
    "tune export resnet18.onnx -o resnet18.pi --target rpi4",
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
            metavar="CPU",
            help=f"A processor that is not here: {', '.join(CPUS)}.",
            autocompletion=one_of(CPUS),
        ),
    ] = None,
    libc: Annotated[Libc, typer.Option("--libc", help="The C library of the system: glibc or musl.")] = Libc.GNU,
    shape: ShapeOption = None,
    batch: BatchOption = None,
    threads: ThreadsOption = None,
    db: DbOption = DEFAULT_DB,
    no_winograd: ExactOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a network as a C library with a header, weights, an example and a wrapper for Python."""
    if model.is_dir() and (target or shape or batch or threads):
        raise BadInput(f"{model}: was built already: --target, --shape, --batch and --threads go with a model")
    check_parent_writable(output)
    if output.exists() and not output.is_dir():
        raise BadInput(f"{output}: is a file; give a folder")
    if target is not None and target not in CPUS:
        raise BadInput(f"--target {target}: is not known; choose among {', '.join(CPUS)}")
    network = None if model.is_dir() else network_asked(model, shape, batch, "float32")
    with Output(as_json) as out, tempfile.TemporaryDirectory() as folder:
        from tuner.export import export, identifier

        if name is not None:
            identifier(name, given=True)  # before anything that takes time
        module = model
        if network is not None:
            module = Path(folder) / "module"
            asked = BuildRequest(network, module, DEFAULT_DEVICE, threads, db, exact=no_winograd)
            if target is None:
                build_verified(asked, out)
            else:
                _build_elsewhere(asked, target, out)
        exported = export(module, output, name, libc=libc.value)
        _show(exported, out)
        out.result({**asdict(exported), "folder": str(exported.folder)})


def _build_elsewhere(asked: BuildRequest, target: str, out: Output) -> None:
    """Build for a processor that is not here: the module is not run."""
    from tuner.devices.cpu import cpu_elsewhere
    from tuner.module import BuildOptions, build
    from tuning_db.store import open_db

    device = cpu_elsewhere(target, asked.threads)
    graph = load_graph(asked.network, out, [device])
    with open_db(asked.db, create=False, read_only=True) as store:
        manifest = build(graph, device, asked.output, store, options=BuildOptions(asked.exact, link=False))
    untuned = [operator.node for operator in manifest.operators if operator.source in ("default", "none")]
    show(manifest, untuned, out)


def _show(exported: Exported, out: Output) -> None:
    name = exported.name
    table = Table(box=None)
    for title in ("file", "what it is"):
        table.add_column(title)
    table.add_row(f"lib{name}.so, lib{name}.a", f"kernels and runtime, {exported.library / 1024:.0f} KiB")
    table.add_row(f"{name}.weights", f"{exported.weights / 2**20:.1f} MiB")
    table.add_row(f"{name}.h, {name}.hpp", "interfaces for C and C++")
    table.add_row(f"{name}.py", "wrapper for Python with NumPy")
    table.add_row("example.c, Makefile, CMakeLists.txt", "a program that runs it")
    out.show(table)
    out.show(
        f"wrote {exported.folder}: {exported.calls} kernel calls, {exported.arena / 2**20:.1f} MiB of memory besides "
        f"the weights ({exported.least / 2**20:.1f} are needed at one time)"
    )
    if exported.checked:
        out.show("all outputs equal the module's, bit for bit")
    else:
        out.remark("it was not run, as it is for another system: compare its outputs there")
