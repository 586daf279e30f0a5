"""`tune bench DIR --against ort,openvino,default` compares a built module with its peers in one alternating run.

With `--profile` and no peers it only tells where the module's time goes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.common import JsonOption, Output, check_file, seconds_of, split_list
from tuner.cli.completion import PEERS, several_of
from tuner.cli.run import ModuleArgument
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tuner.module import Manifest
    from tuner.report.bench import Comparison

EXAMPLES = (
    "tune bench resnet18.tuned --against ort,openvino,default",
    "tune bench resnet18.tuned --profile --threads 1",
)


def command(
    module: ModuleArgument,
    *,
    against: Annotated[
        str,
        typer.Option(
            "--against",
            help="Peers, separated by commas: ort, openvino, default.",
            autocompletion=several_of(PEERS),
        ),
    ] = "",
    profile: Annotated[
        bool, typer.Option("--profile", help="Time of every operator, transform and copy; needs no peer.")
    ] = False,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="M.onnx", help="What the peers run (default: the file it was built from)."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="Threads of every contender (default: as built, or all for a GPU)."),
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Blocks of each contender.")] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Time for all timed blocks together.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random inputs.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Compare a built module with its peers, and tell where its time goes."""
    seconds, peers = seconds_of(minutes), split_list(against)
    if not peers and not profile:
        raise BadInput("nothing is asked for: name peers with --against, or give --profile")
    with Output(as_json) as out:
        comparison = compare(module, peers, model, threads=threads, rounds=rounds, seconds=seconds, seed=seed, out=out)
        show(comparison, out)
        out.result({"module": str(module), **comparison.as_dict()})


def compare(
    module: Path,
    peers: list[str],
    model: Path | None,
    *,
    threads: int | None,
    rounds: int | None,
    seconds: float | None,
    seed: int,
    out: Output,
) -> Comparison:
    """Check the arguments, then compare the module with its peers. Without peers the module is timed alone.

    `seconds` is the time of all timed blocks together, None for the default. Raises BadInput if an argument cannot be
    used.
    """
    from tuner.report.peers import peer_named

    for name in peers:
        peer_named(name)
    if model is not None:
        check_file(model, "the ONNX model that the module was built from")

    from tuner.devices import open_device, usable_cpus
    from tuner.module import random_inputs, read_manifest
    from tuner.report import bench

    manifest = read_manifest(module)
    source = find_model(module, manifest, model) if peers else Path(manifest.model["source"])
    device = open_device("cpu", threads or (manifest.threads if manifest.computes_on_host else None))
    if manifest.computes_on_host and device.threads != manifest.threads:
        out.remark(f"{module} was built for {manifest.threads} threads and is compared with {device.threads}")
    count = rounds or bench.ROUNDS
    block = bench.BLOCK_SECONDS if seconds is None else seconds / count / (len(peers) + 1)
    return bench.compare(
        module,
        source,
        peers,
        inputs=random_inputs(manifest.inputs, seed),
        threads=device.threads,
        cpus=usable_cpus()[: device.threads],
        rounds=count,
        block_seconds=block,
        progress=out.remark,
    )


def find_model(module: Path, manifest: Manifest, given: Path | None) -> Path:
    """Return the ONNX file that the peers run. Raises BadInput if it is gone or the module was built from another."""
    from tuner.graph.importers.onnx.check import read_onnx
    from tuner.graph.importers.onnx.shapes import free_inputs, identity

    source = given or Path(manifest.model["source"])
    if given is None and not source.is_file():
        raise BadInput(f"{module} was built from {source}, which is not there (any more): give the file with --model")
    proto, digest = read_onnx(source)
    free = set(free_inputs(proto))
    if identity(digest, {t.name: t.shape for t in manifest.inputs if t.name in free}) != manifest.model["sha256"]:
        raise BadInput(f"{source} is not the file that {module} was built from: give that with --model, or build again")
    return source


def show(comparison: Comparison, out: Output) -> None:
    """Print which peers were skipped and why, the table of operators and the table of contenders."""
    from tuner.report.tables import comparison_table, operator_table

    for name, reason in comparison.skipped.items():
        out.remark(f"{name} is skipped: {reason}")
    out.show(operator_table(comparison.profile))
    out.show(comparison_table(comparison))
