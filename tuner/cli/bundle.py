"""`tune bundle`: tune a device that cannot be reached: candidates go there in a file, and results come back in one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner.cli.common import (
    DEFAULT_DB,
    DbOption,
    ExactOption,
    JsonOption,
    Output,
    SearcherOption,
    SeedOption,
    ThreadsOption,
    check_file,
    check_parent_writable,
)
from tuner.cli.completion import one_of
from tuner.cli.examples import examples
from tuner.cli.model import ModelArgument, load_tasks
from tuner.errors import BadInput

_DRIVERS = {"opencl": "pyopencl", "cuda": "pycuda"}  # what the agent drives kinds of devices with

app = typer.Typer(
    no_args_is_help=True,
    help="Tune a device that cannot be reached, by files.",
    epilog=examples("tune bundle make resnet18.onnx --facts facts.json", "tune bundle import bundle.pyz results.zip"),
)

FactsOption = Annotated[
    Path, typer.Option("--facts", metavar="FACTS", help="What the device says: `python3 agent.pyz --facts` there.")
]


@app.command(
    epilog=examples(
        "tune bundle make resnet18.onnx --facts facts.json -o bundle.pyz",
        "tune bundle make resnet18.onnx --facts facts.json -d opencl:0 --configs 64",
    )
)
def make(
    model: ModelArgument,
    facts: FactsOption,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="BUNDLE")] = Path("bundle.pyz"),
    configs: Annotated[int, typer.Option(min=1, help="Of every operator.")] = 32,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            metavar="D",
            help="cpu, opencl:N or cuda:N as the facts list.",
            autocompletion=one_of(("cpu", "opencl:0", "cuda:0")),
        ),
    ] = "cpu",
    threads: ThreadsOption = None,
    searcher: SearcherOption = None,
    db: DbOption = DEFAULT_DB,
    seed: SeedOption = 0,
    no_winograd: ExactOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write candidates for a model's operators, and what measures them, as one file for the device."""
    from tuner.search import DEFAULT, check_searcher
    from tuner.session.bundles import make_bundle
    from tuning_db.store import open_db

    check_file(model, "an ONNX model")
    check_parent_writable(output)
    with Output(as_json) as out:
        chosen, made_for = check_searcher(searcher or DEFAULT), _device(facts, device, threads)
        tasks = load_tasks(model)
        with open_db(db) as store:
            count = make_bundle(
                tasks,
                made_for,
                store,
                output,
                chosen,
                configs,
                seed,
                no_winograd,
                lambda task, built: out.remark(f"{task.name}: {built} candidates"),
            )
        out.show(f"wrote {output} with {count} candidates; on the device: python3 {output.name} -o results.zip")
        out.result({"file": str(output), "candidates": count, "device": made_for.key.as_dict()})


@app.command(
    "import",
    epilog=examples(
        "tune bundle import bundle.pyz results.zip", "tune bundle import bundle.pyz results.zip --db team.db"
    ),
)
def import_results(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="As it went to the device.")],
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="What came back.")],
    db: DbOption = DEFAULT_DB,
    as_json: JsonOption = False,
) -> None:
    """Check what a device computed, and add its measurements to the database."""
    from tuner.measure.bundle import read_results
    from tuning_db.store import open_db

    with Output(as_json) as out:
        trials = list(read_results(bundle, results))
        with open_db(db) as store:
            added = store.add_many(trials)
        failed = sum(not trial.ok for trial in trials)
        out.show(f"{results}: {len(trials)} trials, {failed} of them failures; {len(trials) - added} were known")
        out.result({"trials": len(trials), "failures": failed, "added": added, "known": len(trials) - added})


def _device(facts: Path, name: str, threads: int | None) -> Any:
    from tuner.devices import device_of, gpu_device_of

    check_file(facts, "what `python3 agent.pyz --facts` prints on the device")
    kind, _, number = name.partition(":")
    if not (name == "cpu" or (kind in _DRIVERS and number.isdecimal())):
        raise BadInput(f"device {name!r}: give cpu, opencl:N or cuda:N")
    if threads is not None and kind in _DRIVERS:
        raise BadInput(f"device {name}: a number of threads is for the device cpu; leave it out")
    try:
        said = json.loads(facts.read_text())
        if name == "cpu":
            return device_of("board:bundle", said, threads)
        found = said[kind]
        if int(number) < len(found):
            return gpu_device_of(f"board:bundle/{name}", said, found[int(number)])
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{facts}: not what `python3 agent.pyz --facts` prints: {error}") from error
    there = ", ".join(f"{kind}:{i} ({d['name']})" for i, d in enumerate(found)) or "none"
    raise BadInput(f"{facts}: no device {name} (there: {there}): does the device's Python have {_DRIVERS[kind]}?")
