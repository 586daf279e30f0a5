"""`tune demo` tunes, builds and compares a real network, from nothing to a table of before and after."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.bench import BenchRequest, compare, show
from tuner.cli.build import build_verified
from tuner.cli.built import BuildRequest
from tuner.cli.common import JsonOption, Output, SeedOption, ThreadsOption, check_parent_writable, seconds_of
from tuner.cli.completion import NETWORKS, one_of
from tuner.cli.network import Network, load_tasks
from tuner.cli.tuning import Request, finish, tune_tasks
from tuner.errors import BadInput

NETWORK = "resnet18"
PEERS = ("ort", "default")
ROUNDS = 5

EXAMPLES = ("tune demo", "tune demo --network mobilenet1.0 --minutes 5 --threads 1")


def command(
    folder: Annotated[Path, typer.Option("--folder", help="Where the model, database and module go.")] = Path(
        "edgetune-demo"
    ),
    minutes: Annotated[float, typer.Option("--minutes", help="Time for tuning.")] = 2.0,
    network: Annotated[
        str, typer.Option("--network", help="One of `tune zoo`.", autocompletion=one_of(NETWORKS))
    ] = NETWORK,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Tune, build, verify and compare a real network: under six minutes on two cores."""
    from tuner.report.text import times_text

    started = time.perf_counter()
    seconds = seconds_of(minutes)
    check_parent_writable(folder / network if folder.is_dir() else folder)
    with Output(as_json) as out:
        model = _write_network(network, folder, out)
        asked = Network(model)
        db, module = str(folder / "edgetune.db"), folder / f"{network}.tuned"
        request = Request("cpu", threads, None, None, seconds, None, db, seed, exact=False)
        report = tune_tasks(request, lambda target: load_tasks(asked, out, target), out)
        if report.stopped == "interrupted":
            finish(report, out)
        built = build_verified(BuildRequest(asked, module, "cpu", threads, db), out)
        comparison = compare(BenchRequest(module, _installed(), model, rounds=ROUNDS, seed=seed), out)
        show(comparison, out)
        before = "; ".join(
            f"{peer.seconds * 1e3:.1f} ms with {peer.version} ({times_text(comparison.times_better(peer))})"
            for peer in comparison.peers
        )
        out.show(f"{network}: {comparison.ours.seconds * 1e3:.1f} ms tuned, {before}")
        wall = time.perf_counter() - started
        out.show(
            f"The demo took {wall / 60:.1f} minutes. Go on: tune model {model} --db {db} --minutes {minutes + 7:g}"
        )
        out.result({"session": report.as_dict(), "build": built, "comparison": comparison.as_dict(), "seconds": wall})


def _write_network(network: str, folder: Path, out: Output) -> Path:
    from tuner.zoo import names, write_model

    if network not in names():
        raise BadInput(f"no network is named {network!r} (known: {', '.join(names())})")
    folder.mkdir(exist_ok=True)
    path = folder / f"{network}.onnx"
    if not path.exists():
        write_model(network, path)
        out.remark(f"wrote {path}: {network} with random weights")
    return path


def _installed() -> list[str]:
    from tuner.report.peers import available, peer_named

    return [name for name in PEERS if available(peer_named(name))]
