"""Builds networks for a board, which verifies and times them there. Start at `build_on_board`.

The board's agent runs what `tune export` writes, so it needs neither TVM nor edgetune.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.built import BuildRequest, Decided, decide, decided_by, described, show, store_of, worst
from tuner.cli.checks import Checks
from tuner.cli.common import Output
from tuner.cli.network import find_model
from tuner.cli.placing import Reward
from tuner.errors import BadInput, VerificationFailed

if TYPE_CHECKING:
    from tuner.devices import Device
    from tuner.export.checking import Check
    from tuner.module import BuildOptions, Manifest
    from tuner.module.verification import Verifiable
    from tuner.placement.timing import Timing
    from tuner.studies.topology import Topology

BoardOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        "-d",
        metavar="D",
        help="board:NAME, board:NAME/opencl:N or that with ,cpu: there, if it was built for that.",
    ),
]


def is_on_board(device: str) -> bool:
    """Tell whether an option names a device of a board."""
    return device.startswith("board:")


def _check_devices(device: str) -> None:
    """Raise BadInput unless names mean the CPU of one board, an OpenCL device of it, or this device and the CPU."""
    from tuner.devices.board import places_on_board

    _, places = places_on_board(device)
    kinds = [place.partition(":")[0] for place in places]
    if kinds not in (["cpu"], ["opencl"], ["opencl", "cpu"]):
        raise BadInput(
            f"--device {device}: networks are built for the CPU or an OpenCL device of one board, or for both: "
            "board:NAME, board:NAME/opencl:N or board:NAME/opencl:N,cpu"
        )


def check_board(device: str | None) -> None:
    """Raise BadInput unless a device is None, or what networks are built for on one board."""
    if device is None:
        return
    if not is_on_board(device):
        raise BadInput(
            f"--device {device}: give board:NAME, board:NAME/opencl:N or board:NAME/opencl:N,cpu (without --device a "
            "module runs here, on what it was built for)"
        )
    _check_devices(device)


def open_for_build(asked: BuildRequest, out: Output) -> list[Device]:
    """Open the devices of a board that a network is built for. Raises BadInput for options that boards lack."""
    if asked.staging or (asked.placer and asked.placer.reward is Reward.MEASURED):
        raise BadInput(
            f"--device {asked.device}: --stages and --placement-reward measured are for devices of this machine: leave "
            "them away, or run the command on the board"
        )
    return open_there(asked.device, asked.threads if asked.plan is None else _planned_threads(asked.plan), out)


def _planned_threads(plan: Path) -> int | None:
    """Return the threads of the CPU in a plan, or None if the CPU is not in it."""
    from tuner.placement.plan_file import load_plan

    return next((int(d["threads"]) for d in load_plan(plan)["devices"] if d["name"] == "cpu"), None)


def open_there(device: str, threads: int | None, out: Output) -> list[Device]:
    """Open the devices of a board that an option names. Raises BadInput unless networks are built for them."""
    from tuner.devices.board import open_to_build

    _check_devices(device)
    return open_to_build(device, threads, out.remark)


def timing_there(device: str, devices: Sequence[Device], out: Output) -> Timing:
    """Return what measures costs on the devices of a board that an option names, which are open."""
    from tuner.devices.board import name_on_board, open_to_build, places_on_board
    from tuner.export.board_timing import BoardTiming

    if not any(d.is_host for d in devices):  # the host of a GPU is needed to launch its kernels
        cpu = name_on_board(places_on_board(device)[0], "cpu")
        devices = [*devices, *open_to_build(cpu, 1, out.remark)]
    return BoardTiming(device, devices, out.remark)


def build_for(
    asked: BuildRequest, devices: Sequence[Device], options: BuildOptions, out: Output
) -> tuple[Manifest, Decided]:
    """Build a module for devices that are not here, from the database, and show the choices. Return its manifest, and
    what computes which step."""
    from tuner.module import build_placed

    decided = decide(asked, devices, out) if asked.plan is None else decided_by(asked.plan, asked, devices, out)
    with store_of(asked.db, out, read_only=True) as store:
        manifest = build_placed(
            decided.graph, decided.devices, decided.planned, directory=asked.output, store=store, options=options
        )
    show(manifest, out)
    return manifest, decided


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


def _measured_there(given: str, name: str, devices: Sequence[Device], tell: Callable[[str], None]) -> Topology:
    from tuner.studies.topology.on_board import measured_on_board

    return measured_on_board(given, name, devices, tell)


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
    devices = open_for_build(asked, out)
    if asked.placer is not None:
        asked = replace(asked, placer=replace(asked.placer, measure=partial(_measured_there, asked.device)))
    checked: dict[str, Any] = {}

    def check(folder: Path) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as work:
            there = check_there(asked.device, asked.network.file, asked.checks, out)
            checked.update(export(folder, work, check=there).checked)
        return checked["errors"]

    tools = toolchain_for(machine_of(host_of([device.target for device in devices])), own_libc())
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
    manifest, decided = build_for(asked, devices, options, out)
    seconds = time.perf_counter() - started
    result = f"in {seconds:.0f} s; {1e3 * checked['seconds']:.3g} ms there, largest error against the model"
    decided.show(asked, f"of {asked.device}, {result} {worst(manifest):.1e}", out)
    placement = None if decided.placing is None else decided.placing.result
    board = {"device": asked.device, "seconds": checked["seconds"]}
    return {**described(asked, manifest), "placement": placement, "stages": None, "board": board, "seconds": seconds}
