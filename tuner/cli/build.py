"""`tune build M.onnx -o DIR` plans and builds a module from the database, and verifies it. Start at `build_verified`.

It measures nothing, except what --stages and the search methods of --placement need. `on_board` builds for boards.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.built import BuildRequest, Decided, decide, decided_by, described, show, store_of, worst
from tuner.cli.checks import InputOption, ToleranceOption, check_of, checks_asked
from tuner.cli.common import (
    DEFAULT_DB,
    DEFAULT_DEVICE,
    DbOption,
    DtypeOption,
    ExactOption,
    JsonOption,
    MaxMemoryOption,
    MaxWeightsOption,
    MemoryOption,
    Objective,
    ObjectiveOption,
    Output,
    PluginOption,
    ThreadsOption,
    VendorOption,
    check_parent_writable,
    import_plugins,
    refuse_boards,
    size_asked,
    split_list,
    templates_asked,
)
from tuner.cli.completion import BUILT_FOR, BUILT_FOR_USAGES, several_of
from tuner.cli.network import AS_FILE, BatchOption, ModelArgument, ShapeOption, load_graph, network_asked
from tuner.cli.on_board import build_on_board, is_on_board
from tuner.cli.placing import (
    Placement,
    PlacementOption,
    PlacementRewardOption,
    PlacementSecondsOption,
    Reward,
    TopologyOption,
    TraceOption,
    WritePlacementOption,
    placed_by,
    placer_asked,
    refuse_beside_plan,
)
from tuner.cli.precision import PrecisionOption, precision_asked, with_given
from tuner.cli.stages import StageLimitsOption, StageMinutesOption, Stager, Stages, StagesOption, options_asked
from tuner.errors import BadInput, choices

if TYPE_CHECKING:
    from tuner.devices import Device

EXAMPLES = (
    "tune build resnet18.onnx -o resnet18.tuned",
    "tune build ssd.onnx --device opencl:0,cpu --placement mcmc -o ssd.both",
    "tune build resnet18.onnx --device board:pi -o resnet18.pi",
)


def command(
    model: ModelArgument,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to write.")],
    shape: ShapeOption = None,
    batch: BatchOption = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            metavar="D",
            help=f"{choices(BUILT_FOR_USAGES)}; opencl:N,cpu: what the first cannot, the CPU does; board:NAME (also "
            "/opencl:N and ,cpu): built here, verified and timed there.",
            autocompletion=several_of(BUILT_FOR),
        ),
    ] = DEFAULT_DEVICE,
    fallback: Annotated[
        str, typer.Option("--fallback", metavar="OPERATOR,...", help="Goes to the CPU in any case: nms,argsort ...")
    ] = "",
    placement: PlacementOption = Placement.FALLBACK,
    topology: TopologyOption = None,
    write_placement: WritePlacementOption = None,
    placement_seconds: PlacementSecondsOption = 10.0,
    placement_reward: PlacementRewardOption = Reward.SIMULATED,
    placement_trace: TraceOption = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="PLAN", help="Build what this file of `tune plan` says.")
    ] = None,
    threads: ThreadsOption = None,
    memory: MemoryOption = None,
    db: DbOption = DEFAULT_DB,
    no_winograd: ExactOption = False,
    dtype: DtypeOption = "float32",
    precision: PrecisionOption = AS_FILE,
    plugin: PluginOption = None,
    vendor: VendorOption = "",
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
    """Build a module from the database, and verify it against the model."""
    network = network_asked(model, shape, batch, dtype, precision_asked(precision))
    staging = options_asked(stage_minutes, stage_limits, no_winograd) if stages is Stages.AUTO else None
    if plan is not None:
        refuse_beside_plan(placement, write_placement)
        if objective is not Objective.LATENCY:
            raise BadInput("--plan says which kernels there are: leave --objective away")
        if precision != AS_FILE:
            raise BadInput("--plan says in which precision each operator is computed: leave --precision away")
    placer = placer_asked(
        placement,
        topology,
        placement_seconds,
        written=write_placement,
        reward=placement_reward,
        trace=placement_trace,
    )
    most_weights, most_memory = size_asked("--max-weights", max_weights), size_asked("--max-memory", max_memory)
    check_parent_writable(output)
    with Output(as_json) as out:
        import_plugins(templates_asked(plugin, vendor))
        asked = BuildRequest(
            network,
            output,
            device,
            threads,
            db,
            exact=no_winograd,
            unwanted=tuple(split_list(fallback)),
            plan=plan,
            memory=memory,
            staging=staging,
            placer=placer,
            checks=checks_asked(tolerance, input),
            objective=objective,
            max_weights=most_weights,
            max_memory=most_memory,
        )
        out.result(build_on_board(asked, out) if is_on_board(device) else build_verified(asked, out))


def build_verified(asked: BuildRequest, out: Output) -> dict[str, Any]:
    """Build a module, verify it, show its choices and return what --json prints.

    A module that fails verification is not put in place. Raises BadInput, DatabaseError, VerificationFailed.
    """
    from tuner.module import BuildOptions, Module, build_placed, load
    from tuner.placement.fallback import present

    started = time.perf_counter()
    if asked.plan is not None:
        decided = _from_plan(asked, asked.plan, out)
    else:
        decided = decide(asked, _opened(asked.device, asked.threads), out)
    graph, devices = decided.graph, decided.devices

    def rebuild(file: Path, folder: Path) -> Module:
        """Build a part of the network, which is in `file`, for the same devices, placed by the fallback; load it."""
        network = replace(asked.network, file=file, shapes={}, batch=None, precision=AS_FILE)
        part = with_given(load_graph(network, out, devices), graph.precisions)
        used, kinds = placed_by(part, devices, present(part, asked.unwanted), None)
        build_placed(part, used, kinds, directory=folder, store=store, options=BuildOptions(asked.exact))
        return load(folder)

    with store_of(asked.db, out, read_only=asked.staging is None) as store:
        stager = None if asked.staging is None else Stager(devices[0], store, asked.staging, out)
        check = check_of(asked.network, graph, asked.checks, rebuild=rebuild, out=out)
        options = BuildOptions(
            asked.exact,
            check,
            stager,
            portable=asked.portable,
            objective=asked.objective.value,
            max_weights=asked.max_weights,
            max_memory=asked.max_memory,
        )
        manifest = build_placed(graph, devices, decided.planned, directory=asked.output, store=store, options=options)
    seconds = time.perf_counter() - started
    show(manifest, out)
    decided.show(asked, f"in {seconds:.0f} s; largest error against the model {worst(manifest):.1e}", out)
    placement = None if decided.placing is None else decided.placing.result
    stages = stager.result if stager is not None else None
    return {**described(asked, manifest), "placement": placement, "stages": stages, "seconds": seconds}


def _opened(names: str, threads: int | None) -> list[Device]:
    """Open one device, or a GPU and the CPU. Raises BadInput for other devices."""
    from tuner.devices import open_devices

    devices = open_devices(split_list(names) or [names], threads)
    refuse_boards(devices)
    if len(devices) > 1 and [d.is_host for d in devices] != [False, True]:
        raise BadInput(f"--device {names}: one device, or a GPU and the CPU that it falls back to: opencl:0,cpu")
    return devices


def _from_plan(asked: BuildRequest, plan: Path, out: Output) -> Decided:
    """Load the network and open the devices of a plan, with its threads; return both and the plan's choices.

    Raises BadInput if a device is not here, or if the options ask for other devices.
    """
    from tuner.devices import kind_of, open_device
    from tuner.placement.plan_file import load_plan

    said = load_plan(plan)
    if asked.unwanted or asked.device not in (DEFAULT_DEVICE, ",".join(d["name"] for d in said["devices"])):
        raise BadInput("--plan says which device computes what: leave --device and --fallback away")
    devices = [
        open_device(d["name"], d["threads"] if kind_of(d["name"]).takes_threads else None) for d in said["devices"]
    ]
    return decided_by(plan, asked, devices, out)
