"""`tune export DIR -o OUT` writes a built module as a C library that needs neither Python nor TVM."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tuner.cli.build import BuildRequest, build_verified
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
from tuner.cli.network import BatchOption, ShapeOption, network_asked
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tuner.export import Exported

EXAMPLES = (
    "tune export resnet18.tuned -o resnet18.c",
    "tune export resnet18.onnx -o resnet18.c --name classifier",
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
    shape: ShapeOption = None,
    batch: BatchOption = None,
    threads: ThreadsOption = None,
    db: DbOption = DEFAULT_DB,
    no_winograd: ExactOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a network as a C library with a header, weights, an example and a wrapper for Python."""
    asked = None
    if not model.is_dir():
        network = network_asked(model, shape, batch, "float32")
        asked = BuildRequest(network, Path(), DEFAULT_DEVICE, threads, db, exact=no_winograd)
    elif shape or batch or threads:
        raise BadInput(f"{model}: was built already: --shape, --batch and --threads go with a model")
    check_parent_writable(output)
    if output.exists() and not output.is_dir():
        raise BadInput(f"{output}: is a file; give a folder")
    with Output(as_json) as out:
        out.result(_exported(model, asked, output, name, out))


def _exported(
    model: Path, asked: BuildRequest | None, output: Path, name: str | None, out: Output
) -> dict[str, object]:
    """Build the model if it is not built yet, export it, and return what --json prints."""
    from dataclasses import replace

    from tuner.export import export, identifier

    if name is not None:
        identifier(name, given=True)  # before anything that takes time
    if asked is None:
        exported = export(model, output, name)
    else:
        with tempfile.TemporaryDirectory() as folder:
            build_verified(replace(asked, output=Path(folder) / "module"), out)
            exported = export(Path(folder) / "module", output, name)
    _show(exported, out)
    return {**asdict(exported), "folder": str(exported.folder)}


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
        f"the weights ({exported.least / 2**20:.1f} are needed at one time); outputs equal the module's bit for bit"
    )
