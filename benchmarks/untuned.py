"""This benchmark compares modules that are built without any trial with those of the same networks that were tuned.

    python benchmarks/untuned.py FOLDER [--threads 1] [--rounds 6] [--trials 8] [--only NAME,...] [--shipped]
        [--json FILE]

FOLDER is that of a run of benchmarks/real_networks.py with --minutes and --folder: for each network it has a tuned
module NAME.cpu. The benchmark builds each network's file again with an empty database, as if nobody had ever tuned any
of its operators: what is shipped is left out, too, unless --shipped is given. Both modules alternate, in processes of
their own. A ratio is the untuned module's latency over the tuned one's, and 1 says that tuning gains nothing. With
--trials, so many trials a task are made first, from an empty database too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from models_cpu import machine
from modules import alternated, inputs_of

from tuner.module import read_manifest
from tuner.report.peers import OURS
from tuning_db.store import open_db

# Runs `tune` as a network's first user, to whom nothing that is shipped is of use.
_WITHOUT_SHIPPED = """
from tuning_db import shipped
shipped._trials = dict
from tuner.cli.main import main
main()
"""


def build(tuned: Path, to: Path, asked: argparse.Namespace) -> None:
    """Build the file that a tuned module was made from with an empty database, or with one of a few trials. Raises
    CalledProcessError."""
    manifest = read_manifest(tuned)
    shapes = [word for i in manifest.inputs for word in ("--shape", f"{i.name}={','.join(map(str, i.shape))}")]
    start = ["-m", "tuner"] if asked.shipped else ["-c", _WITHOUT_SHIPPED]
    options = [*shapes, "--threads", str(asked.threads), "--db", str(to.with_suffix(".db"))]
    open_db(to.with_suffix(".db")).close()

    def run(command: str, *more: str) -> None:
        words = [sys.executable, *start, command, manifest.model["source"], *options, *more]
        subprocess.run(words, check=True, capture_output=True, text=True)

    if asked.trials:
        tasks = {operator.workload for operator in manifest.operators if operator.config is not None}
        run("model", "--trials", str(asked.trials * len(tasks)))
    run("build", "-o", str(to))


def measure(tuned: Path, folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Build a network untuned and compare it with its tuned module."""
    untuned = folder / f"{tuned.name}.untuned"
    row: dict[str, Any] = {"network": tuned.name.removesuffix(".cpu")}
    try:
        build(tuned, untuned, asked)
    except subprocess.CalledProcessError as error:
        return {**row, "said": (error.stderr.strip().splitlines() or ["it says nothing"])[-1]}
    sources = {name: (OURS, path) for name, path in (("tuned", tuned), ("untuned", untuned))}
    times, _ = alternated(sources, inputs_of(tuned, 0), asked.rounds)
    seconds = {name: median(blocks) for name, blocks in times.items()}
    return {**row, **seconds, "ratio": seconds["untuned"] / seconds["tuned"]}


def line(row: dict[str, Any]) -> str:
    """Format a row of the table in Markdown."""
    cells = [f"{row[name] * 1e3:.2f}" if name in row else "" for name in ("untuned", "tuned")]
    ratio = f"{row['ratio']:.2f}" if "ratio" in row else row["said"]
    return f"| {' | '.join([row['network'], *cells, ratio])} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--trials", type=int, default=0, help="trials a task that are made first (default: none)")
    parser.add_argument("--only", default="", help="names of networks, separated by commas")
    parser.add_argument("--shipped", action="store_true", help="use what is shipped")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    modules = sorted(path.parent for path in asked.folder.glob("*.cpu/manifest.json"))
    if not modules:
        sys.exit(f"{asked.folder}: has no module NAME.cpu: run benchmarks/real_networks.py --minutes 3 --folder FOLDER")
    names = set(filter(None, asked.only.split(",")))
    modules = [path for path in modules if not names or path.name.removesuffix(".cpu") in names]
    print("| network | untuned, ms | tuned, ms | ratio |\n|---|---|---|---|")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for module in modules:
            rows.append(measure(module, Path(scratch), asked))
            print(line(rows[-1]), flush=True)
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    summary = {"untuned_geomean": geometric_mean(ratios), "untuned_worst": max(ratios)} if ratios else {}
    print(json.dumps(summary))
    if asked.json:
        asked.json.write_text(json.dumps({"summary": summary, "rows": rows, "machine": machine()}, indent=1))
    return int(len(ratios) < len(rows))


if __name__ == "__main__":
    sys.exit(main())
