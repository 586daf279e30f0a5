"""`tune replay FILE ...` compares searchers on recorded spaces, without a device."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.common import JsonOption, Output, PluginOption, import_plugins
from tuner.cli.completion import SEARCHERS, one_of
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tuner.measure.replay.recorded import RecordedSpace
    from tuner.session.replaying import Replayed

EXAMPLES = (
    "tune replay benchmarks/spaces/*.jsonl.xz --searcher random --searcher auto",
    "tune replay space.jsonl.xz --searcher genetic:population=48 --seeds 20",
)


def command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Recorded spaces (.jsonl.xz).")],
    *,
    searcher: Annotated[
        list[str] | None,
        typer.Option(
            "--searcher",
            metavar="NAME[:OPTION=VALUE,...]",
            help=f"One of {', '.join(SEARCHERS)}; may be repeated (default: random, genetic and auto).",
            autocompletion=one_of(SEARCHERS),
        ),
    ] = None,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Trials of one search.")] = 200,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Searches with each searcher.")] = 5,
    noise: Annotated[
        bool, typer.Option("--noise/--no-noise", help="Measurements are drawn anew from the recorded times.")
    ] = True,
    plugin: PluginOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare searchers on recorded spaces: trials until 90, 95 and 99 % of the best throughput, as medians."""
    from tuner.measure.replay.recorded import read
    from tuner.search import check_searcher
    from tuner.session.replaying import replay

    import_plugins(plugin or [])
    names = [check_searcher(name) for name in searcher or ("random", "genetic", "auto")]
    spaces = [(path, read(path)) for path in files]
    with Output(as_json) as out:
        rows: list[dict[str, Any]] = []
        for path, space in spaces:
            for name in names:
                runs = [replay(space, name, s, trials=trials, noise=noise) for s in range(seeds)]
                rows.append(_row(path, space, name, runs))
                out.remark(_told(rows[-1]))
                for part, why in {failure for run in runs for failure in run.failures.items()}:
                    out.remark(f"{name} went on without {part}, which failed: {why}")
        out.show(_table(rows))
        out.result({"trials": trials, "seeds": seeds, "noise": noise, "rows": rows})


def _row(path: Path, space: RecordedSpace, name: str, runs: list[Replayed]) -> dict[str, Any]:
    from tuner.measure.replay.recorded import SUFFIX
    from tuner.session.replaying import reached

    if not math.isfinite(space.best_seconds):
        raise BadInput(f"{path}: every config failed: there is nothing to search for")
    return {
        "space": path.name.removesuffix(SUFFIX),
        "configs": len(space.configs),
        "searcher": name,
        **reached(runs),
        "share_at_end": median(r.optimum / r.delivered[-1] for r in runs),
        "own_milliseconds_a_trial": median(1e3 * r.own_seconds / len(r.delivered) for r in runs),
    }


def _told(row: dict[str, Any]) -> str:
    return f"{row['space']}, {row['searcher']}: {100 * row['share_at_end']:.1f} % of the best at the end"


def _table(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    shares = rows[0]["trials_to"]
    titles = (f"to {float(share):.0%}" for share in shares)
    table = Table("space", "configs", "searcher", *titles, "at the end", "ms a trial")
    for row in rows:
        reached = ["never" if trials is None else f"{trials:g}" for trials in row["trials_to"].values()]
        table.add_row(
            row["space"],
            str(row["configs"]),
            row["searcher"],
            *reached,
            f"{100 * row['share_at_end']:.1f} %",
            f"{row['own_milliseconds_a_trial']:.1f}",
        )
    return table
