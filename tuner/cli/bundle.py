"""`tune bundle` tunes a device that cannot be reached: candidates go there in a file, results come back in another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from board_agent.parsing import parse_json
from tuner.cli.common import (
    DEFAULT_DB,
    DEFAULT_DEVICE,
    INTERRUPTED,
    DbOption,
    DtypeOption,
    ExactOption,
    JsonOption,
    Output,
    SearcherOption,
    SeedOption,
    ThreadsOption,
    check_file,
    check_parent_writable,
)
from tuner.cli.completion import ON_BOARDS, ON_BOARDS_USAGES, one_of
from tuner.cli.examples import examples
from tuner.cli.network import BatchOption, ModelArgument, ShapeOption, load_tasks, network_asked
from tuner.errors import BadInput, choices

if TYPE_CHECKING:
    from tuner.devices import Device

app = typer.Typer(
    no_args_is_help=True,
    help="Tune a device that cannot be reached, by files.",
    epilog=examples(
        "tune bundle make resnet18.onnx --facts facts.json",
        "tune bundle run bundle.pyz",
        "tune bundle import bundle.pyz results.zip",
    ),
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
    *,
    facts: FactsOption,
    shape: ShapeOption = None,
    batch: BatchOption = None,
    dtype: DtypeOption = "float32",
    output: Annotated[Path, typer.Option("--output", "-o", metavar="BUNDLE")] = Path("bundle.pyz"),
    configs: Annotated[int, typer.Option(min=1, help="Of every operator.")] = 32,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            metavar="D",
            help=f"{choices(ON_BOARDS_USAGES)} as the facts list.",
            autocompletion=one_of(ON_BOARDS),
        ),
    ] = DEFAULT_DEVICE,
    threads: ThreadsOption = None,
    searcher: SearcherOption = None,
    db: DbOption = DEFAULT_DB,
    seed: SeedOption = 0,
    no_winograd: ExactOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write candidates for a model's operators, and what measures them, as one file for the device."""
    from tuner.devices import check_storage
    from tuner.search import DEFAULT, check_searcher
    from tuner.session.bundles import BundleOptions, make_bundle
    from tuning_db.store import open_db

    network = network_asked(model, shape, batch, dtype)
    check_parent_writable(output)
    with Output(as_json) as out:
        chosen, made_for = check_searcher(searcher or DEFAULT), _device(facts, device, threads)
        check_storage(dtype, made_for.target, made_for.title)
        tasks = load_tasks(network, out, made_for.target)
        with open_db(db) as store:
            options = BundleOptions(chosen, configs, seed, no_winograd)
            count = make_bundle(
                tasks,
                made_for,
                store,
                output,
                options,
                progress=lambda task, built: out.remark(f"{task.name}: {built} candidates"),
            )
        out.show(f"wrote {output} with {count} candidates; on the device: python3 {output.name} -o results.zip")
        out.result({"file": str(output), "candidates": count, "device": made_for.key.as_dict()})


@app.command(epilog=examples("tune bundle run bundle.pyz", "tune bundle run bundle.pyz -o results.zip"))
def run(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="What `tune bundle make` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="RESULTS", help="The file to write.")] = Path(
        "results.zip"
    ),
    as_json: JsonOption = False,
) -> None:
    """Measure on this machine what a bundle holds, as `python3 BUNDLE` does where edgetune is not installed. It goes on
    where it was interrupted."""
    from board_agent.bundle import Stopped, carry_out, end_by_interrupt

    check_file(bundle, "what `tune bundle make` wrote")
    check_parent_writable(output)
    end_by_interrupt()
    with Output(as_json) as out:
        try:
            outcome = carry_out(str(bundle), str(output), out.remark)
        except Stopped as stopped:
            raise BadInput(str(stopped)) from stopped
        except KeyboardInterrupt:
            out.remark("interrupted: the same command goes on")
            raise typer.Exit(INTERRUPTED) from None
        out.show(
            f"{output} has the results of {outcome.candidates} candidates, {outcome.failed} of which failed; on the "
            f"host: tune bundle import {bundle.name} {output.name}"
        )
        out.result({"file": str(output), **outcome._asdict()})


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
    from tuner.measure.boards.bundle import read_results
    from tuning_db.store import open_db

    with Output(as_json) as out:
        found = read_results(bundle, results)
        with open_db(db) as store:
            added = store.add_many(found.trials)
        count, failed = len(found.trials), sum(not trial.ok for trial in found.trials)
        marked = sum(trial.throttled for trial in found.trials)
        out.show(f"{results}: {count} trials, {failed} of them failures; {count - added} were known")
        if found.remark is not None:
            out.remark(found.remark)
        if marked:
            out.remark(f"{marked} trials are marked: the device did not keep its speed while they were measured")
        out.result({"trials": count, "failures": failed, "marked": marked, "added": added, "known": count - added})


def _device(facts: Path, spec: str, threads: int | None) -> Device:
    from tuner.devices import kinds_on_boards, refuse_threads
    from tuner.devices.board import name_on_board

    check_file(facts, "what `python3 agent.pyz --facts` prints on the device")
    kinds = kinds_on_boards()
    kind = next((kind for kind in kinds if kind.recognises(spec)), None)
    if kind is None or kind.on_boards is None:
        raise BadInput(f"device {spec!r}: give {choices([kind.usage for kind in kinds])}")
    if not kind.takes_threads:
        refuse_threads(spec, threads)
    try:
        said = parse_json(facts.read_text())
        found = kind.on_boards.listed(said)
        if spec in found:
            return kind.on_boards.device(name_on_board("bundle", spec), said, found[spec], threads)
        there = ", ".join(f"{spec} ({described['name']})" for spec, described in found.items()) or "none"
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{facts}: not what `python3 agent.pyz --facts` prints: {error}") from error
    package = kind.on_boards.package
    raise BadInput(f"{facts}: no device {spec} (there: {there}): does the device's Python have {package}?")
