"""This benchmark tells how soon a search is near its end: ours and MetaSchedule's, on convolutions on one CPU thread.

    python benchmarks/first_minute.py [--seconds 60] [--trials 64] [--layers 1,5,6] [--helped]
        [--keep DIR] [--json FILE]

The layers are ResNet-18's. Ours tunes each for --seconds from an empty database, MetaSchedule for --trials
trials, with its own defaults (--helped lets its processes start sooner, see metaschedule_child). Then the two best
kernels take turns with cold weights. For each search it prints the seconds from its start, workers and all, until its
best kernel came within 1.2 and 1.05 times the faster of the two final kernels, or "never".
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conv2d_cpu import (
    EPILOGUE,
    SETS,
    files_of,
    layer_name,
    plain_operands,
    time_all,
    tune_layer,
    tune_metaschedule,
)
from models_cpu import machine

from templates.workloads import Conv2d
from tuner.devices import Device, last_level_cache_bytes, open_device, usable_cpus
from tuner.measure import LocalRunner, MeasureOptions
from tuner.session import Budget, Progress, TuneOptions
from tuning_db.record import Config
from tuning_db.store import open_db

NEAR = (1.2, 1.05)
Curve = Sequence[tuple[float, float]]  # seconds since the start of a search, and its best kernel's by then


def tune_ours(conv: Conv2d, device: Device, seconds: float, folder: Path) -> tuple[Config, Curve]:
    """Tune a layer from an empty database, unless `folder` has the result. Return the best config and the curve."""
    workload, kept, curve = conv.workload(EPILOGUE), folder / "ours.json", []

    def note(progress: Progress) -> None:
        if progress.best_seconds is not None:
            curve.append((time.perf_counter() - begun, progress.best_seconds))

    with open_db(str(folder / "ours.db")) as store:
        if not kept.exists():
            begun = time.perf_counter()
            with LocalRunner(device, MeasureOptions()) as runner:
                options = TuneOptions(budget=Budget(seconds=seconds), progress=note)
                tune_layer(conv, workload, device, store, runner, options)
            kept.write_text(json.dumps(curve))
        best = store.best(workload, device.key)
    assert best is not None
    return best.config, json.loads(kept.read_text())


def until(curve: Curve, near: float, own: float, best: float) -> float | None:
    """Return the seconds until a search's best kernel took at most `near` times `best`. `own` is what its last kernel
    takes where both were timed in turns: its own timings are scaled to that."""
    scale = own / curve[-1][1]
    return next((at for at, seconds in curve if scale * seconds <= near * best), None)


def measure(conv: Conv2d, device: Device, asked: argparse.Namespace, folder: Path) -> dict[str, Any] | None:
    """Run both searches for a layer and time their kernels in turns. Return None if MetaSchedule finds none."""
    folder.mkdir(parents=True, exist_ok=True)
    config, ours = tune_ours(conv, device, asked.seconds, folder)
    if tune_metaschedule(conv, asked.trials, folder, 0, helped=asked.helped) is None:
        return None
    curves = {"ours": ours, "metaschedule": json.loads((folder / "curve.json").read_text())}
    common = {"cpus": usable_cpus()[-1:], "cold_bytes": 2 * last_level_cache_bytes(), "conv": asdict(conv)}
    other = {"kind": "library", "library": str(folder / "ms.so"), "operands": plain_operands(conv, folder)}
    specs = {
        "ours": {**common, **files_of(conv, device, config, folder, "ours")},
        "metaschedule": {**common, **other},
    }
    finals = time_all(specs, folder, 9)
    best = min(finals.values())
    found = {
        name: {
            "kernel_seconds": finals[name],
            "search_seconds": curve[-1][0],
            "until": {str(near): until(curve, near, finals[name], best) for near in NEAR},
        }
        for name, curve in curves.items()
    }
    for name, result in found.items():
        times = (result["until"][str(near)] for near in NEAR)
        words = " | ".join("never" if at is None else f"{at:.1f}" for at in times)
        print(
            f"| {layer_name(conv)} | {name} | {1e6 * result['kernel_seconds']:.0f} | {result['search_seconds']:.0f} | "
            f"{words} |",
            flush=True,
        )
    return {"layer": layer_name(conv), **found}


def main() -> None:
    """Measure the layers that the command line asks for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of our search of a layer")
    parser.add_argument("--trials", type=int, default=64, help="of MetaSchedule's search of a layer")
    parser.add_argument("--layers", default="1,5,6", help="numbers of ResNet-18's layers, separated by commas")
    parser.add_argument("--helped", action="store_true", help="let MetaSchedule's processes start sooner")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what was tuned there, and go on from it")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    device = open_device("cpu", 1)
    print(f"| layer | search | us | searched s | {' | '.join(f's to {near}' for near in NEAR)} |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        keep = Path(asked.keep or temporary).absolute()
        convs = [SETS["resnet18"][int(number)] for number in asked.layers.split(",")]
        rows = [measure(conv, device, asked, keep / layer_name(conv).replace(" ", "_")) for conv in convs]
    if asked.json is not None:
        found = {"rows": [row for row in rows if row is not None], "machine": machine()}
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    if None in rows:
        sys.exit("MetaSchedule found no kernel for a layer")


if __name__ == "__main__":
    main()
