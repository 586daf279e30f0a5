"""This benchmark compares two versions of edgetune, each in a checkout of its own, in one run.

    python benchmarks/versions.py BEFORE AFTER [--rounds 9] [--long-rounds 2] [--only help imports ...] [--json]

BEFORE and AFTER are folders with checkouts. Both run in this script's environment, in turns, in random order. Short
commands (`tune --help`, `tune --version`, importing what a module and what tuning needs, `tune op --help`) run --rounds
times each; `benchmarks/conv2d_cpu.py --quick --no-metaschedule` and `tune demo` run --long-rounds times each. Figures
are medians of seconds, wall and processor; of the demo and the convolution what they report besides: latencies in
microseconds. A ratio is after over before: above 1 the newer version is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from models_cpu import machine

Figures = Mapping[str, float]
SHORT = {
    "help": ("-m", "tuner", "--help"),
    "version": ("-m", "tuner", "--version"),
    "op help": ("-m", "tuner", "op", "--help"),
    "import a module": ("-c", "import tuner.module"),
    "import tuning": ("-c", "import tuner.session, tuner.measure, tuner.graph"),
}


def run(checkout: Path, *words: object) -> tuple[str, Figures]:
    """Run Python on a checkout in a folder of its own. Return its standard output and its seconds."""
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, *map(str, words)], cwd=folder, env=env, capture_output=True, text=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{checkout}: {' '.join(map(str, words))} failed: {done.stderr[-2000:]}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, {"wall seconds": wall, "processor seconds": processor}


def short(words: tuple[str, ...]) -> Callable[[Path], Figures]:
    return lambda checkout: run(checkout, *words)[1]


def convolution(checkout: Path) -> Figures:
    """Tune and time the quick benchmark's convolution."""
    said, seconds = run(checkout, checkout / "benchmarks" / "conv2d_cpu.py", "--quick", "--no-metaschedule", "--json")
    rows = json.loads(said)["rows"]
    return {**seconds, **{f"{row['name']}, us": row["seconds"]["ours"] * 1e6 for row in rows}}


def demo(checkout: Path) -> Figures:
    """Run `tune demo`, which tunes for a fixed time."""
    said, seconds = run(checkout, "-m", "tuner", "demo", "--json")
    found = json.loads(said)
    trials = sum(task["trials"] for task in found["session"]["tasks"])
    return {**seconds, "trials": trials, "latency, us": found["comparison"]["ours"]["median_seconds"] * 1e6}


def compare(measure: Callable[[Path], Figures], checkouts: Mapping[str, Path], rounds: int) -> dict[str, Any]:
    """Return the medians of both versions' figures, and the ratio of each, after over before."""
    found: dict[str, list[Figures]] = {side: [] for side in checkouts}
    for _ in range(rounds):
        for side in random.sample(list(checkouts), len(checkouts)):
            found[side].append(measure(checkouts[side]))
    medians = {side: {name: median(f[name] for f in all_) for name in all_[0]} for side, all_ in found.items()}
    before, after = medians.values()
    return {**medians, "ratio": {name: after[name] / before[name] for name in before if name in after}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--long-rounds", type=int, default=2)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")
    options = parser.parse_args()
    checkouts = {"before": options.before.resolve(), "after": options.after.resolve()}
    jobs = {name: (short(words), options.rounds) for name, words in SHORT.items()}
    jobs |= {"convolution": (convolution, options.long_rounds), "demo": (demo, options.long_rounds)}
    report: dict[str, Any] = {"machine": machine(), "rows": {}}
    for name, (measure, rounds) in jobs.items():
        if options.only and name not in options.only:
            continue
        row = report["rows"][name] = compare(measure, checkouts, rounds)
        for figure, ratio in row["ratio"].items():
            told = f"{row['before'][figure]:10.4g} {row['after'][figure]:10.4g}"
            print(f"{name + ', ' + figure:<50}{told} {ratio:8.3f}", file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
