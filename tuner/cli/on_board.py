"""Builds networks for a board, which verifies and times them there. Start at `build_on_board`.

The board's agent runs what `tune export` writes, so it needs neither TVM nor edgetune.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.built import BuildRequest, described, show, store_of, worst
from tuner.cli.checks import Checks
from tuner.cli.common import Output
from tuner.cli.network import find_model, load_graph
from tuner.cli.placing import placed_by
from tuner.errors import BadInput, VerificationFailed

if TYPE_CHECKING:
    from tuner.devices import Device
    from tuner.export.checking import Check
    from tuner.module import BuildOptions, Manifest
    from tuner.module.verification import Verifiable

BoardOption = Annotated[
    str | None,
    typer.Option(
        "--device", "-d", metavar="D", help="board:NAME or board:NAME/opencl:N: there, if it was built for that."
    ),
]


def is_on_board(device: str) -> bool:
    """Tell whether an option names a device of a board."""
    return device.startswith("board:")


def _is_refused(device: str) -> bool:
    """Tell whether a device of boards is none that networks are built for: several, or CUDA's."""
    return bool({",", "+"} & set(device)) or "/cuda" in device


def check_board(device: str | None) -> None:
    """Raise BadInput unless a device is a CPU or an OpenCL device of one board, or None."""
    if device is None:
        return
    if not is_on_board(device) or _is_refused(device):
        raise BadInput(
            f"--device {device}: give board:NAME or board:NAME/opencl:N, of one board (otherwise a module runs here, "
            "on what it was built for)"
        )


def open_for_build(asked: BuildRequest, out: Output) -> Device:
    """Open the device of a board that a network is built for. Raises BadInput for options that boards lack."""
    from tuner.devices.board import open_to_build

    if _is_refused(asked.device):
        raise BadInput(f"--device {asked.device}: networks are built for the CPU or an OpenCL device of one board")
    if asked.unwanted or asked.plan or asked.memory is not None or asked.staging or asked.placer:
        raise BadInput(
            f"--device {asked.device}: --fallback, --placement, --plan, --memory and --stages are for devices of this "
            "machine: leave them away, or run the command on the board"
        )
    return open_to_build(asked.device, asked.threads, out.remark)


def build_for(asked: BuildRequest, devices: list[Device], options: BuildOptions, out: Output) -> Manifest:
    """Build a module for devices that are not here, from the database, and show the choices."""
    from tuner.module import build_placed

    graph = load_graph(asked.network, out, devices)
    used, planned = placed_by(graph, devices, (), None)
    with store_of(asked.db, out, read_only=True) as store:
        manifest = build_placed(graph, used, planned, directory=asked.output, store=store, options=options)
    show(manifest, out)
    return manifest


def check_there(device: str, model: Path, checks: Checks, out: Output) -> Check:
    """Return a check that compares an export with its `model` on a board and times it."""
    from tuner.export.on_board import checker
    from tuner.module import OnnxReference, VerifyOptions, verify

    def compare(network: Verifiable) -> dict[str, float]:
        reference = OnnxReference(model)
        options = VerifyOptions(given=checks.inputs, tolerance=checks.tolerance)
        try:
            return verify(network, reference, options, own_errors=reference.own_errors)
        except VerificationFailed as error:
            raise VerificationFailed(f"{error}; --tolerance allows more, where that is accurate enough") from None

    return checker(device, compare, out.remark)


def check_module_there(module: Path, device: str, out: Output) -> Check:
    """Return a check that compares an export of a module with its model on a board and times it.

    Raises BadInput if the module was built for another processor, or if its model is gone.
    """
    from tuner.export.on_board import check_processor
    from tuner.module import read_manifest

    check_board(device)
    manifest = read_manifest(module)
    check_processor(module, manifest, device, notice=out.remark)
    model = find_model(module, manifest, remedy="put it there, or export the module without --device")
    return check_there(device, model, Checks(), out)


def build_on_board(asked: BuildRequest, out: Output) -> dict[str, Any]:
    """Build a module for a board, let the board verify and time it, show both and return what --json prints.

    A module that fails verification is not put in place. Raises BadInput, DatabaseError, VerificationFailed.
    """
    from tuner.export import export
    from tuner.export.compiling import own_libc, toolchain_for
    from tuner.graph import host_of
    from tuner.measure.codegen.toolchain import machine_of
    from tuner.module import BuildOptions

    started = time.perf_counter()
    device = open_for_build(asked, out)
    checked: dict[str, Any] = {}

    def check(folder: Path) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as work:
            there = check_there(asked.device, asked.network.file, asked.checks, out)
            checked.update(export(folder, work, check=there).checked)
        return checked["errors"]

    tools = toolchain_for(machine_of(host_of([device.target])), own_libc())
    linker = (*tools.compiler, "-nostdlib")
    options = BuildOptions(
        asked.exact,
        check,
        linker=linker,
        portable=True,
        objective=asked.objective.value,
        max_weights=asked.max_weights,
        max_memory=asked.max_memory,
    )
    manifest = build_for(asked, [device], options, out)
    seconds = time.perf_counter() - started
    out.show(
        f"wrote {asked.output} for {asked.device} {device.key.model}, in {seconds:.0f} s; "
        f"{1e3 * checked['seconds']:.3g} ms there, largest error against the model {worst(manifest):.1e}"
    )
    board = {"device": asked.device, "seconds": checked["seconds"]}
    return {**described(asked, manifest), "placement": None, "stages": None, "board": board, "seconds": seconds}
