"""`tune build M.onnx -o DIR`: plan and build from the database, measuring nothing, and verify the result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tuner.cli.common import (
    DEFAULT_DB,
    DbOption,
    DeviceOption,
    DtypeOption,
    ExactOption,
    JsonOption,
    Output,
    PluginOption,
    ThreadsOption,
    check_dtype,
    check_file,
    check_parent_writable,
    import_plugins,
)
from tuner.cli.model import ModelArgument, load_graph

if TYPE_CHECKING:
    from tuner.module import Manifest


def command(
    model: ModelArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to write.")],
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    db: DbOption = DEFAULT_DB,
    no_winograd: ExactOption = False,
    dtype: DtypeOption = "float32",
    plugin: PluginOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build a module from the database, and verify it against the model."""
    check_dtype(dtype)
    check_file(model, "an ONNX model")
    check_parent_writable(output)
    with Output(as_json) as out:
        import_plugins(plugin or ())
        result = build_verified(model, output, device, threads, db, no_winograd, out, dtype)
        out.result(result)


def build_verified(
    model: Path,
    output: Path,
    device: str,
    threads: int | None,
    db: str,
    exact: bool,
    out: Output,
    dtype: str = "float32",
) -> dict[str, Any]:
    """Build, verify, show the choices; what --json prints. A module that fails verification is not put in place.
    `dtype`: how its activations and weights are stored.

    Raises BadInput, DatabaseError, VerificationFailed.
    """
    from tuner.devices import check_storage, open_device
    from tuner.module import OnnxReference, build, load, verify
    from tuning_db.store import open_db

    started = time.perf_counter()
    target = open_device(device, threads)
    check_storage(dtype, target.target, target.title)
    graph = load_graph(model, dtype)

    def check(folder: Path) -> dict[str, float]:
        return verify(load(folder), OnnxReference(model), graph=graph)

    with open_db(db, create=False, read_only=True) as store:
        manifest = build(graph, target, output, store, exact, check=check)
    seconds = time.perf_counter() - started
    untuned = [operator.node for operator in manifest.operators if operator.source in ("default", "none")]
    show(manifest, untuned, out)
    threads_used = f", {target.threads} threads" if target.is_host else ""
    out.show(
        f"wrote {output} for {target.name} {target.key.model}{threads_used}, in {seconds:.0f} s; "
        f"largest error against the model {_worst(manifest):.1e}"
    )
    return {
        "output": str(output),
        "model": str(model),
        "threads": manifest.threads,
        "dtype": manifest.dtype,
        "relative_error": manifest.errors,
        "untuned": untuned,
        "operators": [operator.as_dict() for operator in manifest.operators],
        "seconds": seconds,
    }


def show(manifest: Manifest, untuned: Sequence[str], out: Output) -> None:
    """The choices, the operators without one of their own, and what half precision costs in accuracy."""
    out.show(choice_table(manifest))
    if untuned:
        out.remark(f"{len(untuned)} of {len(manifest.operators)} operators have not been tuned for this device")
    if manifest.dtype != "float32":
        out.show(f"half precision: largest error {_worst(manifest):.1e} relative to the float32 model's largest output")


def _worst(manifest: Manifest) -> float:
    return max(manifest.errors.values(), default=0.0)


def choice_table(manifest: Manifest) -> Table:
    """One row an operator: its kernel, where that is known from, and its error alone."""
    from tuner.report.tables import describe, microseconds, short_config

    table = Table(box=None, title="Operators", title_justify="left")
    for title in ("operator", "computes", "template", "known from", "us", "error"):
        right = title in ("us", "error")
        table.add_column(title, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for operator in manifest.operators:
        table.add_row(
            operator.node,
            f"{operator.workload.op} {describe(operator.workload)}",
            short_config(operator.config),
            operator.source,
            microseconds(operator.seconds),
            "-" if operator.error is None else f"{operator.error:.1e}",
        )
    return table
